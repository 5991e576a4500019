//! The bindings against those of two other crates, each made by another version of the generator: `rdma-sys` out of the
//! same header of the system, in which whatever has a union in it is written by hand; and `ibverbs-sys`, on which
//! `ibverbs` stands, out of the header of rdma-core 55 that it brings.
//!
//! `cargo xtask test bindings` runs this.

use slackline::internals::transport::verbs_bindings as ours;
use std::mem::{align_of, offset_of, size_of};

// ---------------------------------------------------------------------- how to compare

/// Structures of the same size, with these fields at the same offsets.
macro_rules! same {
    ($theirs:ident $compared:ident $($name:ident { $($($field:ident).+),* })*) => {
        $(assert_eq!(size_of::<ours::$name>(), size_of::<$theirs::$name>(), "size of {}", stringify!($name));)*
        grown! { $theirs $compared $($name { $($($field).+),* })* }
    };
}

/// Structures that have these fields at the same offsets, and that a newer header may have made longer at their end.
macro_rules! grown {
    ($theirs:ident $compared:ident $($name:ident { $($($field:ident).+),* })*) => {$(
        let name = stringify!($name);
        assert!(size_of::<ours::$name>() <= size_of::<$theirs::$name>(), "size of {name}");
        assert_eq!(align_of::<ours::$name>(), align_of::<$theirs::$name>(), "alignment of {name}");
        $compared.push(name.to_string());
        $(
            let field = [name, $(stringify!($field)),+].join(".");
            let (our, their) = (offset_of!(ours::$name, $($field).+), offset_of!($theirs::$name, $($field).+));
            assert_eq!(our, their, "offset of {field}");
            $compared.push(field);
        )*
    )*};
}

/// Constants that stand in the root of the crate.
macro_rules! in_root {
    ($theirs:ident $compared:ident $enumeration:ident $($name:ident),*) => {
        $(value!($compared $name $theirs::$name);)*
    };
}

/// Constants that stand in a module, or are values of an enumeration, of that name.
macro_rules! in_module {
    ($theirs:ident $compared:ident $enumeration:ident $($name:ident),*) => {
        $(value!($compared $name $theirs::$enumeration::$name);)*
    };
}

/// Constants that belong to a type of bits.
macro_rules! in_bits {
    ($theirs:ident $compared:ident $enumeration:ident $($name:ident),*) => {
        $(value!($compared $name $theirs::$enumeration::$name.0);)*
    };
}

macro_rules! value {
    ($compared:ident $name:ident $their:expr) => {
        assert_eq!(i64::from(ours::$name), $their as i64, stringify!($name));
        $compared.push(stringify!($name).to_string());
    };
}

// ---------------------------------------------------------------------- what to compare

/// The structures whose fields have the same names in all three, and which have not grown.
macro_rules! structures {
    ($theirs:ident $compared:ident) => {
        same! { $theirs $compared
            ibv_gid { raw, global.subnet_prefix, global.interface_id }
            ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
            ibv_device_attr {
                fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
                hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
                max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
                max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
                max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr,
                max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
                phys_port_cnt
            }
            ibv_async_event { event_type, element.cq, element.qp, element.port_num }
            ibv_mw_bind_info { mr, addr, length, mw_access_flags }
            ibv_pd { context, handle }
            ibv_mr { context, pd, addr, length, handle, lkey, rkey }
            ibv_mw { context, pd, rkey, handle, type_ }
            ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
            ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
            ibv_srq_attr { max_wr, max_sge, srq_limit }
            ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
            ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
            ibv_qp_attr {
                qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
                qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
                sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
                rnr_retry, alt_port_num, alt_timeout, rate_limit
            }
            ibv_sge { addr, length, lkey }
            ibv_recv_wr { wr_id, next, sg_list, num_sge }
            ibv_mw_bind { wr_id, send_flags, bind_info }
            ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
            ibv_qp {
                context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
                events_completed
            }
            ibv_comp_channel { context, fd, refcnt }
            ibv_cq {
                context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
                async_events_completed
            }
            ibv_ah { context, pd, handle }
            _ibv_device_ops { _dummy1, _dummy2 }
            ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
            ibv_context_ops {
                _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd,
                _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
                _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq,
                _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq,
                _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp, _compat_modify_qp,
                _compat_destroy_qp, post_send, post_recv, _compat_create_ah, _compat_destroy_ah,
                _compat_attach_mcast, _compat_detach_mcast, _compat_async_event
            }
            ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
            ibv_send_wr {
                wr_id, next, sg_list, num_sge, opcode, send_flags, wr.rdma.remote_addr, wr.rdma.rkey,
                wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey, wr.ud.ah,
                wr.ud.remote_qpn, wr.ud.remote_qkey, qp_type.xrc.remote_srqn
            }
        }
    };
}

macro_rules! port_attributes {
    ($how:ident $theirs:ident $compared:ident) => {
        $how! { $theirs $compared
            ibv_port_attr {
                state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
                qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
                init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2
            }
        }
    };
}

/// The constants of one enumeration, in the style in which a crate has them.
macro_rules! constants {
    ($style:ident $theirs:ident $compared:ident ib_uverbs_advise_mr_advice) => {
        $style! { $theirs $compared ib_uverbs_advise_mr_advice
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_gid_type) => {
        $style! { $theirs $compared ibv_gid_type
            IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_node_type) => {
        $style! { $theirs $compared ibv_node_type
            IBV_NODE_UNKNOWN, IBV_NODE_CA, IBV_NODE_SWITCH, IBV_NODE_ROUTER, IBV_NODE_RNIC, IBV_NODE_USNIC,
            IBV_NODE_USNIC_UDP, IBV_NODE_UNSPECIFIED
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_transport_type) => {
        $style! { $theirs $compared ibv_transport_type
            IBV_TRANSPORT_UNKNOWN, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, IBV_TRANSPORT_USNIC,
            IBV_TRANSPORT_USNIC_UDP, IBV_TRANSPORT_UNSPECIFIED
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_device_cap_flags) => {
        $style! { $theirs $compared ibv_device_cap_flags
            IBV_DEVICE_RESIZE_MAX_WR, IBV_DEVICE_BAD_PKEY_CNTR, IBV_DEVICE_BAD_QKEY_CNTR,
            IBV_DEVICE_RAW_MULTI, IBV_DEVICE_AUTO_PATH_MIG, IBV_DEVICE_CHANGE_PHY_PORT,
            IBV_DEVICE_UD_AV_PORT_ENFORCE, IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_SHUTDOWN_PORT,
            IBV_DEVICE_INIT_TYPE, IBV_DEVICE_PORT_ACTIVE_EVENT, IBV_DEVICE_SYS_IMAGE_GUID,
            IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SRQ_RESIZE, IBV_DEVICE_N_NOTIFY_CQ, IBV_DEVICE_MEM_WINDOW,
            IBV_DEVICE_UD_IP_CSUM, IBV_DEVICE_XRC, IBV_DEVICE_MEM_MGT_EXTENSIONS,
            IBV_DEVICE_MEM_WINDOW_TYPE_2A, IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_DEVICE_RC_IP_CSUM,
            IBV_DEVICE_RAW_IP_CSUM, IBV_DEVICE_MANAGED_FLOW_STEERING
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_atomic_cap) => {
        $style! { $theirs $compared ibv_atomic_cap
            IBV_ATOMIC_NONE, IBV_ATOMIC_HCA, IBV_ATOMIC_GLOB
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_mtu) => {
        $style! { $theirs $compared ibv_mtu
            IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_port_state) => {
        $style! { $theirs $compared ibv_port_state
            IBV_PORT_NOP, IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_ARMED, IBV_PORT_ACTIVE,
            IBV_PORT_ACTIVE_DEFER
        }
    };
    ($style:ident $theirs:ident $compared:ident link_layers) => {
        $style! { $theirs $compared link_layers
            IBV_LINK_LAYER_UNSPECIFIED, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_port_cap_flags) => {
        $style! { $theirs $compared ibv_port_cap_flags
            IBV_PORT_SM, IBV_PORT_NOTICE_SUP, IBV_PORT_TRAP_SUP, IBV_PORT_OPT_IPD_SUP,
            IBV_PORT_AUTO_MIGR_SUP, IBV_PORT_SL_MAP_SUP, IBV_PORT_MKEY_NVRAM, IBV_PORT_PKEY_NVRAM,
            IBV_PORT_LED_INFO_SUP, IBV_PORT_SYS_IMAGE_GUID_SUP, IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP,
            IBV_PORT_EXTENDED_SPEEDS_SUP, IBV_PORT_CAP_MASK2_SUP, IBV_PORT_CM_SUP, IBV_PORT_SNMP_TUNNEL_SUP,
            IBV_PORT_REINIT_SUP, IBV_PORT_DEVICE_MGMT_SUP, IBV_PORT_VENDOR_CLASS_SUP,
            IBV_PORT_DR_NOTICE_SUP, IBV_PORT_CAP_MASK_NOTICE_SUP, IBV_PORT_BOOT_MGMT_SUP,
            IBV_PORT_LINK_LATENCY_SUP, IBV_PORT_CLIENT_REG_SUP, IBV_PORT_IP_BASED_GIDS
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_event_type) => {
        $style! { $theirs $compared ibv_event_type
            IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR,
            IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
            IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_LID_CHANGE,
            IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED,
            IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE,
            IBV_EVENT_WQ_FATAL
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_wc_status) => {
        $style! { $theirs $compared ibv_wc_status
            IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_EEC_OP_ERR,
            IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_BAD_RESP_ERR,
            IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR,
            IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_LOC_RDD_VIOL_ERR,
            IBV_WC_REM_INV_RD_REQ_ERR, IBV_WC_REM_ABORT_ERR, IBV_WC_INV_EECN_ERR, IBV_WC_INV_EEC_STATE_ERR,
            IBV_WC_FATAL_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR, IBV_WC_TM_ERR,
            IBV_WC_TM_RNDV_INCOMPLETE
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_wc_opcode) => {
        $style! { $theirs $compared ibv_wc_opcode
            IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD,
            IBV_WC_BIND_MW, IBV_WC_LOCAL_INV, IBV_WC_TSO, IBV_WC_ATOMIC_WRITE, IBV_WC_RECV,
            IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_TM_ADD, IBV_WC_TM_DEL, IBV_WC_TM_SYNC, IBV_WC_TM_RECV,
            IBV_WC_TM_NO_TAG, IBV_WC_DRIVER1, IBV_WC_DRIVER2, IBV_WC_DRIVER3
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_wc_flags) => {
        $style! { $theirs $compared ibv_wc_flags
            IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_IP_CSUM_OK, IBV_WC_WITH_INV, IBV_WC_TM_SYNC_REQ,
            IBV_WC_TM_MATCH, IBV_WC_TM_DATA_VALID
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_access_flags) => {
        $style! { $theirs $compared ibv_access_flags
            IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
            IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_MW_BIND, IBV_ACCESS_ZERO_BASED, IBV_ACCESS_ON_DEMAND,
            IBV_ACCESS_HUGETLB, IBV_ACCESS_RELAXED_ORDERING
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_mw_type) => {
        $style! { $theirs $compared ibv_mw_type
            IBV_MW_TYPE_1, IBV_MW_TYPE_2
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_qp_type) => {
        $style! { $theirs $compared ibv_qp_type
            IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV,
            IBV_QPT_DRIVER
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_qp_attr_mask) => {
        $style! { $theirs $compared ibv_qp_attr_mask
            IBV_QP_STATE, IBV_QP_CUR_STATE, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_ACCESS_FLAGS,
            IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_TIMEOUT,
            IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_ALT_PATH,
            IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_PATH_MIG_STATE,
            IBV_QP_CAP, IBV_QP_DEST_QPN, IBV_QP_RATE_LIMIT
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_qp_state) => {
        $style! { $theirs $compared ibv_qp_state
            IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR,
            IBV_QPS_UNKNOWN
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_mig_state) => {
        $style! { $theirs $compared ibv_mig_state
            IBV_MIG_MIGRATED, IBV_MIG_REARM, IBV_MIG_ARMED
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_wr_opcode) => {
        $style! { $theirs $compared ibv_wr_opcode
            IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
            IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV,
            IBV_WR_BIND_MW, IBV_WR_SEND_WITH_INV, IBV_WR_TSO, IBV_WR_DRIVER1, IBV_WR_ATOMIC_WRITE
        }
    };
    ($style:ident $theirs:ident $compared:ident ibv_send_flags) => {
        $style! { $theirs $compared ibv_send_flags
            IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_SEND_INLINE, IBV_SEND_IP_CSUM
        }
    };
}

/// Compares all that `rdma-sys` has; the names of what was compared.
fn rdma_sys() -> Vec<String> {
    let mut compared = Vec::new();
    structures!(rdma_sys compared);
    port_attributes!(same rdma_sys compared);
    same! { rdma_sys compared
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits
        }
        verbs_context {
            query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow,
            create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp,
            destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain,
            dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table,
            destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex, priv_, query_device_ex,
            ibv_destroy_flow, ABI_placeholder2, ibv_create_flow, ABI_placeholder1, open_qp, create_qp_ex,
            get_srq_num, create_srq_ex, open_xrcd, close_xrcd, _ABI_placeholder3, sz, context
        }
    }
    constants!(in_root rdma_sys compared ibv_gid_type);
    constants!(in_module rdma_sys compared ib_uverbs_advise_mr_advice);
    constants!(in_module rdma_sys compared ibv_node_type);
    constants!(in_module rdma_sys compared ibv_transport_type);
    constants!(in_module rdma_sys compared ibv_atomic_cap);
    constants!(in_module rdma_sys compared ibv_mtu);
    constants!(in_module rdma_sys compared ibv_port_state);
    constants!(in_module rdma_sys compared ibv_event_type);
    constants!(in_module rdma_sys compared ibv_wc_status);
    constants!(in_module rdma_sys compared ibv_wc_opcode);
    constants!(in_module rdma_sys compared ibv_mw_type);
    constants!(in_module rdma_sys compared ibv_qp_type);
    constants!(in_module rdma_sys compared ibv_qp_state);
    constants!(in_module rdma_sys compared ibv_mig_state);
    constants!(in_module rdma_sys compared ibv_wr_opcode);
    constants!(in_bits rdma_sys compared ibv_device_cap_flags);
    constants!(in_bits rdma_sys compared ibv_port_cap_flags);
    constants!(in_bits rdma_sys compared ibv_wc_flags);
    constants!(in_bits rdma_sys compared ibv_access_flags);
    constants!(in_bits rdma_sys compared ibv_qp_attr_mask);
    constants!(in_bits rdma_sys compared ibv_send_flags);
    compared
}

/// Compares all that `ibverbs-sys` has; the names of what was compared.
fn ibverbs_sys() -> Vec<String> {
    let mut compared = Vec::new();
    structures!(ibverbs_sys compared);
    port_attributes!(grown ibverbs_sys compared);
    // Its other fields are private.
    same!(ibverbs_sys compared ibv_wc { qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits });
    constants!(in_root ibverbs_sys compared ibv_gid_type);
    constants!(in_root ibverbs_sys compared ibv_node_type);
    constants!(in_root ibverbs_sys compared ibv_transport_type);
    constants!(in_root ibverbs_sys compared ibv_device_cap_flags);
    constants!(in_root ibverbs_sys compared ibv_atomic_cap);
    constants!(in_root ibverbs_sys compared ibv_mtu);
    constants!(in_root ibverbs_sys compared link_layers);
    constants!(in_root ibverbs_sys compared ibv_event_type);
    constants!(in_root ibverbs_sys compared ibv_mw_type);
    constants!(in_root ibverbs_sys compared ibv_mig_state);
    constants!(in_module ibverbs_sys compared ibv_port_state);
    constants!(in_module ibverbs_sys compared ibv_wc_status);
    constants!(in_module ibverbs_sys compared ibv_wc_opcode);
    constants!(in_module ibverbs_sys compared ibv_qp_type);
    constants!(in_module ibverbs_sys compared ibv_qp_state);
    constants!(in_module ibverbs_sys compared ibv_wr_opcode);
    constants!(in_bits ibverbs_sys compared ibv_port_cap_flags);
    constants!(in_bits ibverbs_sys compared ibv_wc_flags);
    constants!(in_bits ibverbs_sys compared ibv_access_flags);
    constants!(in_bits ibverbs_sys compared ibv_qp_attr_mask);
    constants!(in_bits ibverbs_sys compared ibv_send_flags);
    compared
}

// ---------------------------------------------------------------------- the claims

#[test]
fn the_bindings_are_those_of_rdma_sys() {
    assert!(!rdma_sys().is_empty());
}

#[test]
fn the_bindings_are_those_of_ibverbs_but_for_what_has_grown_since() {
    assert!(!ibverbs_sys().is_empty());
}

#[test]
fn every_structure_field_and_constant_is_compared_with_one_of_them() {
    let compared = [rdma_sys(), ibverbs_sys()].concat();
    // `a.b` is compared if `a.b.c` is.
    let is_compared = |name: &str| {
        let parts = format!("{name}.");
        compared.iter().any(|compared| compared == name || compared.starts_with(&parts))
    };
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/transport/verbs/sys/bindings.rs");
    let text = std::fs::read_to_string(file).unwrap();
    let (mut inside, mut names) = ("", 0);
    for line in text.lines() {
        let word = |begin: &str| {
            let rest = line.strip_prefix(begin)?;
            rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
        };
        let found = if let Some(name) = word("pub struct ").or(word("pub union ")) {
            inside = name;
            name.to_string()
        } else if let Some(field) = word("    pub ") {
            format!("{inside}.{field}")
        } else if let Some(name) = word("pub const ") {
            name.to_string()
        } else {
            continue;
        };
        // Structures and fields without a name of their own are reached through those around them.
        if !found.contains("__bindgen") {
            assert!(is_compared(&found), "`{found}` is not in the lists of tests/oracle.rs");
            names += 1;
        }
    }
    assert!(names > 400, "found only {names} names in {file}");
}
