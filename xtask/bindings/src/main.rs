//! Writes Rust for `<infiniband/verbs.h>` to the standard output, for `cargo xtask bindgen`: types and constants, no
//! functions, since those are found at run time.

use bindgen::{Builder, EnumVariation, Formatter, RustEdition, RustTarget};
use std::error::Error;

/// The types that are asked for. Another type of the header comes along only if one of these holds it by value.
const TYPES: &str = "verbs_context|ibv_gid_entry|ibv_gid_type|ibv_access_flags|ibv_send_flags|ibv_wc_flags|\
                     ibv_qp_attr|ibv_qp_attr_mask|ibv_async_event|ibv_event_type|ibv_device_cap_flags|ibv_wc|\
                     ibv_send_wr|ibv_recv_wr|ibv_device_attr|ibv_qp_init_attr|ibv_port_attr|ibv_port_cap_flags|\
                     ibv_mw_bind_info|ibv_mig_state";
const CONSTANTS: &str = "IBV_LINK_LAYER_.*";

/// Structures that only pointers in unused operations name: a name is enough.
const OPAQUE: &[&str] = &[
    "ibv_alloc_dm_attr",
    "ibv_counter_attach_attr",
    "ibv_counters",
    "ibv_counters_init_attr",
    "ibv_cq_ex",
    "ibv_cq_init_attr_ex",
    "ibv_device_attr_ex",
    "ibv_dm",
    "ibv_flow",
    "ibv_flow_action",
    "ibv_flow_action_esp_attr",
    "ibv_flow_attr",
    "ibv_modify_cq_attr",
    "ibv_ops_wr",
    "ibv_parent_domain_init_attr",
    "ibv_qp_init_attr_ex",
    "ibv_qp_open_attr",
    "ibv_qp_rate_limit_attr",
    "ibv_query_device_ex_input",
    "ibv_rwq_ind_table",
    "ibv_rwq_ind_table_init_attr",
    "ibv_srq_init_attr_ex",
    "ibv_td",
    "ibv_td_init_attr",
    "ibv_values_ex",
    "ibv_wq",
    "ibv_wq_attr",
    "ibv_wq_init_attr",
    "ibv_xrcd",
    "ibv_xrcd_init_attr",
    "verbs_ex_private",
    "_compat_ibv_port_attr",
];

/// Types that only the opaque structures hold, but that the generator would still write.
const LEFT_OUT: &str = "timespec|__time_t|__syscall_slong_t|__atomic.*|__pthread.*|ib_uverbs_flow.*|ibv_odp_caps.*|\
                        ibv_tso_caps|ibv_rss_caps|ibv_packet_pacing_caps|ibv_tm_caps?|ibv_cq_moderation_caps|\
                        ibv_pci_atomic_caps|ibv_srq_type|ibv_wq_type|ibv_wq_state|ibv_rx_hash_conf|ibv_ops_wr.*|\
                        ibv_moderate_cq|ibv_flow.*|ibv_counter_description|ibv_poll_cq_attr|ibv_wc_tm_info";

/// The system's own, whose size depends on the architecture.
const LIBC: &str = "pthread_cond_t|pthread_mutex_t";

/// Made by the library, never by us, and never copied: an object is where it is.
const OBJECTS: &str = "verbs_context|ibv_(context|device|pd|mr|mw|qp|cq|comp_channel|srq)";

fn main() -> Result<(), Box<dyn Error>> {
    let target = RustTarget::stable(85, 0).map_err(|error| error.to_string())?;
    let mut builder = Builder::default()
        .header_contents("slackline.h", "#include <infiniband/verbs.h>")
        .rust_target(target)
        .rust_edition(RustEdition::Edition2024)
        .use_core()
        // A value that the header does not know must not be undefined behaviour.
        .default_enum_style(EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .derive_default(true)
        .ignore_functions()
        .disable_header_comment()
        .formatter(Formatter::Rustfmt)
        .rustfmt_configuration_file(Some(std::path::absolute("rustfmt.toml")?))
        .raw_line(format!("use libc::{{{}}};", LIBC.replace('|', ", ")))
        .allowlist_type(TYPES)
        .allowlist_var(CONSTANTS)
        .blocklist_type(LIBC)
        .blocklist_type(LEFT_OUT)
        .no_copy(OBJECTS)
        .no_debug(format!("{OBJECTS}|_ibv_device_ops|ibv_context_ops"))
        .no_default(format!("{OBJECTS}|_ibv_device_ops|ibv_context_ops|ibv_ah"));
    for name in OPAQUE {
        builder = builder.raw_line(format!("pub enum {name} {{}}")).blocklist_type(name);
    }
    let text = builder.generate()?.to_string();
    // Sizes and offsets are of the machine that the generator ran on.
    let checks = "#[allow(clippy::unnecessary_operation, clippy::identity_op)]";
    print!("{}", text.replace(checks, "#[cfg(target_arch = \"x86_64\")]"));
    Ok(())
}
