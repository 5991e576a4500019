//! PCI Express: links, and the settings in a function's configuration space (PCI Express Base Specification, 7.5 to
//! 7.8 and 10.5).

/// Bytes of the configuration space that users other than root can read.
const HEADER: usize = 64;
/// Offset of the first extended capability; conventional PCI has none.
const EXTENDED: usize = 0x100;

/// A link between a device and the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PciLink {
    /// Of each lane, in billions a second.
    pub(super) gigatransfers: f64,
    pub(super) lanes: u32,
}

impl PciLink {
    /// Of the texts of the kernel: `16.0 GT/s PCIe` and `16`. None for a device without such a link.
    pub(super) fn new(speed: &str, width: &str) -> Option<PciLink> {
        let link = PciLink {
            gigatransfers: speed.split_whitespace().next()?.parse().ok()?,
            lanes: width.trim().parse().ok()?,
        };
        (link.gigatransfers > 0.0 && link.lanes > 0).then_some(link)
    }

    /// Gbit/s of each direction behind the code of the lanes: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, and from
    /// 64 GT/s on 242 of 256 bytes of each flit. The headers of packets take a part of it.
    pub(super) fn gigabits(&self) -> f64 {
        let part = match self.gigatransfers {
            ..=5.0 => 0.8,
            ..64.0 => 128.0 / 130.0,
            _ => 242.0 / 256.0,
        };
        self.gigatransfers * f64::from(self.lanes) * part
    }
}

impl std::fmt::Display for PciLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} GT/s on {} lanes", self.gigatransfers, self.lanes)
    }
}

fn half(config: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]))
}

/// The offset of an extended capability.
fn extended(config: &[u8], wanted: u16) -> Option<usize> {
    let mut at = EXTENDED;
    // A list that runs in a circle is no list.
    for _ in 0..64 {
        let (id, next) = (half(config, at)?, half(config, at + 2)?);
        if id == wanted {
            return Some(at);
        }
        at = usize::from(next >> 4);
        if at < EXTENDED {
            break;
        }
    }
    None
}

/// Whether a bridge with this configuration space redirects requests or completions between peers (7.7.11); `None` if
/// what is there of the space does not tell.
pub(super) fn redirects(config: &[u8]) -> Option<bool> {
    const ACS: u16 = 0x0D;
    const REDIRECT: u16 = 0b1100;
    (config.len() > HEADER).then(|| {
        extended(config, ACS)
            .and_then(|at| half(config, at + 6))
            .is_some_and(|control| control & REDIRECT != 0)
    })
}

/// Whether a function may mark its requests so that they pass others (Device Control, bit 4); `None` as above.
pub(super) fn orders_relaxed(config: &[u8]) -> Option<bool> {
    const EXPRESS: u8 = 0x10;
    const POINTER: usize = 0x34;
    const RELAXED: u16 = 1 << 4;
    if config.len() <= HEADER {
        return None;
    }
    let mut at = usize::from(config[POINTER] & !3);
    for _ in 0..48 {
        if at < HEADER {
            break;
        }
        if config.get(at) == Some(&EXPRESS) {
            return Some(half(config, at + 8)? & RELAXED != 0);
        }
        at = usize::from(config.get(at + 1)? & !3);
    }
    Some(false)
}

/// Whether a function asks the host to translate addresses ahead of time (Address Translation Service, 10.5.1).
pub(super) fn translates_addresses(config: &[u8]) -> bool {
    const ATS: u16 = 0x0F;
    const ENABLE: u16 = 1 << 15;
    extended(config, ATS).and_then(|at| half(config, at + 6)).is_some_and(|control| control & ENABLE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_redirects_if_its_acs_capability_says_so() {
        assert_eq!(redirects(&[0; 64]), None, "not root");
        assert_eq!(redirects(&[0; 256]), Some(false), "conventional PCI");
        let mut config = vec![0; 4096];
        assert_eq!(redirects(&config), Some(false));
        // Advanced error reporting (1), then at 0x140 access control.
        config[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x02, 0x14]);
        config[0x140..0x144].copy_from_slice(&[0x0D, 0x00, 0x01, 0x00]);
        for (control, expected) in [(0b0001, false), (0b0100, true), (0b1000, true), (0b1_0001, false)] {
            config[0x146] = control;
            assert_eq!(redirects(&config), Some(expected), "{control:b}");
        }
        config[0x102..0x104].copy_from_slice(&[0x02, 0x10]);
        assert_eq!(redirects(&config), Some(false), "a list in a circle ends");
    }

    #[test]
    fn settings_are_found_in_their_capabilities() {
        assert_eq!(orders_relaxed(&[0; 64]), None, "not root");
        let mut config = vec![0; 4096];
        assert_eq!(orders_relaxed(&config), Some(false));
        // Power management (1) at 0x40, then PCI Express at 0x60.
        (config[0x34], config[0x40], config[0x41], config[0x60]) = (0x40, 0x01, 0x60, 0x10);
        assert_eq!(orders_relaxed(&config), Some(false));
        config[0x68] = 1 << 4;
        assert_eq!(orders_relaxed(&config), Some(true));
        assert!(!translates_addresses(&config));
        config[0x100..0x104].copy_from_slice(&[0x0F, 0x00, 0x01, 0x00]);
        assert!(!translates_addresses(&config));
        config[0x107] = 0x80;
        assert!(translates_addresses(&config));
    }

    #[test]
    fn a_link_carries_what_the_specification_says() {
        let gigabits = |speed, lanes| PciLink::new(speed, lanes).map(|link| link.gigabits().round());
        // Gen 2 x8, gen 3 x16, gen 5 x16, gen 6 x16.
        assert_eq!(gigabits("5.0 GT/s PCIe", "8"), Some(32.0));
        assert_eq!(gigabits("8.0 GT/s PCIe", "16"), Some(126.0));
        assert_eq!(gigabits("32.0 GT/s PCIe", "16\n"), Some(504.0));
        assert_eq!(gigabits("64.0 GT/s PCIe", "16"), Some(968.0));
        assert_eq!(gigabits("Unknown", "0"), None);
        assert_eq!(gigabits("2.5 GT/s PCIe", "0"), None);
    }
}
