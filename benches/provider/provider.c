/* A verbs library with one device, which carries out each request within the call that posts it, in the memory of its
 * own process. There is no wire and no kernel in it, so that what a program spends is its own time and little else.
 *
 * One thread may use a queue pair and its completion queue at a time, and nothing is ever locked. Only what serves RDMA
 * WRITE, READ, fetch-add and compare-and-swap is there. */

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { SLOTS = 1 << 14, INLINE_MAX = 256, REGIONS_MAX = 1 << 12 };

struct queue {
    struct ibv_cq ibv;
    unsigned head, tail;
    struct {
        uint64_t id;
        uint32_t pair;
        enum ibv_wc_opcode opcode;
    } done[SLOTS];
};

struct pair {
    struct ibv_qp ibv;
    struct ibv_qp_init_attr made_with;
    struct ibv_qp_attr state;
};

static struct ibv_device the_device = {
    .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "here0", .dev_name = "here0"};
static uint32_t last_number, last_key;

/* From the addresses that a region has for requests to those in memory, by its key. */
static uint64_t offsets[REGIONS_MAX];

static void *at(uint32_t key, uint64_t address) { return (void *)(address + offsets[key % REGIONS_MAX]); }

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc) {
    struct queue *queue = (struct queue *)cq;
    int count = 0;
    for (; count < most && queue->tail != queue->head; count++, queue->tail++) {
        unsigned slot = queue->tail % SLOTS;
        wc[count].wr_id = queue->done[slot].id;
        wc[count].status = IBV_WC_SUCCESS;
        wc[count].opcode = queue->done[slot].opcode;
        wc[count].qp_num = queue->done[slot].pair;
        wc[count].wc_flags = 0;
    }
    return count;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct queue *queue = (struct queue *)qp->send_cq;
    int all = ((struct pair *)qp)->made_with.sq_sig_all;
    for (; wr; wr = wr->next) {
        enum ibv_wc_opcode opcode;
        char *there = at(wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
        switch (wr->opcode) {
        case IBV_WR_RDMA_WRITE:
            opcode = IBV_WC_RDMA_WRITE;
            for (int i = 0; i < wr->num_sge; there += wr->sg_list[i].length, i++) {
                uint64_t here = wr->sg_list[i].addr;
                int is_inline = wr->send_flags & IBV_SEND_INLINE;
                memcpy(there, is_inline ? (void *)here : at(wr->sg_list[i].lkey, here), wr->sg_list[i].length);
            }
            break;
        case IBV_WR_RDMA_READ:
            opcode = IBV_WC_RDMA_READ;
            for (int i = 0; i < wr->num_sge; there += wr->sg_list[i].length, i++)
                memcpy(at(wr->sg_list[i].lkey, wr->sg_list[i].addr), there, wr->sg_list[i].length);
            break;
        case IBV_WR_ATOMIC_FETCH_AND_ADD:
            opcode = IBV_WC_FETCH_ADD;
            *(uint64_t *)at(wr->sg_list[0].lkey, wr->sg_list[0].addr) =
                __atomic_fetch_add((uint64_t *)at(wr->wr.atomic.rkey, wr->wr.atomic.remote_addr),
                                   wr->wr.atomic.compare_add, __ATOMIC_SEQ_CST);
            break;
        case IBV_WR_ATOMIC_CMP_AND_SWP: {
            uint64_t expected = wr->wr.atomic.compare_add;
            opcode = IBV_WC_COMP_SWAP;
            __atomic_compare_exchange_n((uint64_t *)at(wr->wr.atomic.rkey, wr->wr.atomic.remote_addr), &expected,
                                        wr->wr.atomic.swap, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
            *(uint64_t *)at(wr->sg_list[0].lkey, wr->sg_list[0].addr) = expected;
            break;
        }
        default:
            *bad = wr;
            return EOPNOTSUPP;
        }
        if (all || wr->send_flags & IBV_SEND_SIGNALED) {
            unsigned slot = queue->head++ % SLOTS;
            queue->done[slot].id = wr->wr_id;
            queue->done[slot].pair = qp->qp_num;
            queue->done[slot].opcode = opcode;
        }
    }
    return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    (void)qp, (void)wr, (void)bad;
    return 0;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only) {
    (void)cq, (void)solicited_only;
    return 0;
}

struct ibv_device **ibv_get_device_list(int *count) {
    struct ibv_device **list = calloc(2, sizeof *list);
    list[0] = &the_device;
    *count = 1;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }

const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

__be64 ibv_get_device_guid(struct ibv_device *device) {
    (void)device;
    return 1;
}

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    struct ibv_context *context = calloc(1, sizeof *context);
    context->device = device;
    context->cmd_fd = -1;
    context->async_fd = eventfd(0, EFD_CLOEXEC);
    context->ops.poll_cq = poll_cq;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    context->ops.req_notify_cq = req_notify_cq;
    return context;
}

int ibv_close_device(struct ibv_context *context) {
    close(context->async_fd);
    free(context);
    return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    (void)context, (void)event;
    errno = EAGAIN;
    return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    (void)context;
    *attr = (struct ibv_device_attr){.max_mr_size = UINT64_MAX, .max_qp = 1 << 16, .max_qp_wr = SLOTS / 2,
                                     .max_sge = 4, .max_cq = 1 << 16, .max_cqe = SLOTS, .max_mr = 1 << 16,
                                     .max_pd = 1 << 16, .max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16,
                                     .atomic_cap = IBV_ATOMIC_GLOB, .phys_port_cnt = 1, .max_pkeys = 1};
    return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *shorter) {
    struct ibv_port_attr *attr = (struct ibv_port_attr *)shorter;
    (void)context, (void)port;
    attr->state = IBV_PORT_ACTIVE;
    attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
    attr->gid_tbl_len = attr->pkey_tbl_len = attr->lid = attr->sm_lid = 1;
    attr->max_msg_sz = 1 << 30;
    attr->active_width = 2;
    attr->active_speed = 32;
    attr->link_layer = IBV_LINK_LAYER_INFINIBAND;
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    (void)context, (void)port, (void)index;
    memset(gid, 0, sizeof *gid);
    gid->raw[0] = 0xfe, gid->raw[1] = 0x80, gid->raw[15] = 1;
    return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t size) {
    (void)flags;
    memset(entry, 0, size);
    entry->gid_type = IBV_GID_TYPE_IB;
    entry->port_num = port;
    return ibv_query_gid(context, port, index, &entry->gid);
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *key) {
    (void)context, (void)port, (void)index;
    *key = 0xffff;
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *domain = calloc(1, sizeof *domain);
    domain->context = context;
    return domain;
}

int ibv_dealloc_pd(struct ibv_pd *domain) {
    free(domain);
    return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *domain, void *start, size_t bytes, uint64_t iova, unsigned access) {
    struct ibv_mr *region = calloc(1, sizeof *region);
    (void)access;
    region->context = domain->context;
    region->pd = domain;
    region->addr = start;
    region->length = bytes;
    region->lkey = region->rkey = __atomic_add_fetch(&last_key, 1, __ATOMIC_RELAXED);
    offsets[region->lkey % REGIONS_MAX] = (uintptr_t)start - iova;
    return region;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *domain, void *start, size_t bytes, int access) {
    return ibv_reg_mr_iova2(domain, start, bytes, (uintptr_t)start, access);
}

int ibv_dereg_mr(struct ibv_mr *region) {
    free(region);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    struct ibv_comp_channel *channel = calloc(1, sizeof *channel);
    channel->context = context;
    channel->fd = eventfd(0, EFD_CLOEXEC);
    return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    close(channel->fd);
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *own, struct ibv_comp_channel *channel,
                             int vector) {
    struct queue *queue = calloc(1, sizeof *queue);
    (void)vector;
    queue->ibv.context = context;
    queue->ibv.channel = channel;
    queue->ibv.cq_context = own;
    queue->ibv.cqe = entries;
    return &queue->ibv;
}

int ibv_destroy_cq(struct ibv_cq *cq) {
    free(cq);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **own) {
    (void)channel, (void)cq, (void)own;
    errno = EAGAIN;
    return -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count) { (void)cq, (void)count; }

struct ibv_qp *ibv_create_qp(struct ibv_pd *domain, struct ibv_qp_init_attr *with) {
    struct pair *pair = calloc(1, sizeof *pair);
    if (with->cap.max_inline_data > INLINE_MAX) {
        free(pair);
        errno = EINVAL;
        return NULL;
    }
    pair->ibv.context = domain->context;
    pair->ibv.qp_context = with->qp_context;
    pair->ibv.pd = domain;
    pair->ibv.send_cq = with->send_cq;
    pair->ibv.recv_cq = with->recv_cq;
    pair->ibv.qp_num = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
    pair->ibv.qp_type = with->qp_type;
    pair->made_with = *with;
    return &pair->ibv;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
    struct pair *pair = (struct pair *)qp;
    if (mask & IBV_QP_STATE)
        qp->state = pair->state.qp_state = attr->qp_state;
    return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *with) {
    struct pair *pair = (struct pair *)qp;
    (void)mask;
    *attr = pair->state;
    *with = pair->made_with;
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp) {
    free(qp);
    return 0;
}

int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t flags) {
    (void)qp, (void)opcode, (void)flags;
    return 1;
}

int ibv_fork_init(void) { return 0; }

const char *ibv_node_type_str(enum ibv_node_type type) {
    (void)type;
    return "channel adapter";
}

const char *ibv_event_type_str(enum ibv_event_type event) {
    (void)event;
    return "event";
}

const char *ibv_wc_status_str(enum ibv_wc_status status) { return status == IBV_WC_SUCCESS ? "success" : "error"; }

const char *ibv_port_state_str(enum ibv_port_state state) {
    return state == IBV_PORT_ACTIVE ? "PORT_ACTIVE" : "PORT_DOWN";
}
