//! How options name the memory of this host and that of a GPU.

use slackline::internals::job::coordinated::ComputeDevice;

/// Reads `cuda` or `cuda:N`, or `host`, which is what the option calls everything but a GPU.
pub(crate) fn parse(text: &str, host: &str) -> Result<ComputeDevice, String> {
    let ordinal = match text.strip_prefix("cuda") {
        _ if text == host => return Ok(ComputeDevice::Host),
        Some("") => Some(None),
        Some(rest) => rest.strip_prefix(':').and_then(|ordinal| ordinal.parse().ok()).map(Some),
        None => None,
    };
    ordinal
        .map(ComputeDevice::Gpu)
        .ok_or_else(|| format!("write {host}, cuda, or cuda:N with the number of a GPU, from 0"))
}

/// The same as text.
pub(crate) fn name(device: ComputeDevice, host: &str) -> String {
    match device {
        ComputeDevice::Host => host.to_owned(),
        ComputeDevice::Gpu(None) => "cuda".to_owned(),
        ComputeDevice::Gpu(Some(ordinal)) => format!("cuda:{ordinal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_read_as_they_are_written() {
        for device in [ComputeDevice::Host, ComputeDevice::Gpu(None), ComputeDevice::Gpu(Some(3))] {
            assert_eq!(parse(&name(device, "host"), "host"), Ok(device));
        }
        for wrong in ["", "cpu", "cuda:", "cuda:x", "cuda:-1", "cuda0", "cuda:4294967296"] {
            assert!(parse(wrong, "host").is_err(), "{wrong}");
        }
    }
}
