/* What posting a request and polling its completion costs without a library between: `bare OPERATION BATCH COUNT` posts
 * lists of BATCH requests, of which the last one reports, COUNT times, and prints nanoseconds a request. */

#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1000000000ull * time.tv_sec + time.tv_nsec;
}

int main(int arguments, char **argument) {
    if (arguments != 4)
        return 2;
    int batch = atoi(argument[2]), count = 0;
    int is_write = !strcmp(argument[1], "write"), is_read = !strcmp(argument[1], "read");
    long rounds = atol(argument[3]);
    struct ibv_device **list = ibv_get_device_list(&count);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_pd *domain = ibv_alloc_pd(context);
    struct ibv_cq *queue = ibv_create_cq(context, 1024, NULL, NULL, 0);
    struct ibv_qp_init_attr with = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC};
    struct ibv_qp *pair = ibv_create_qp(domain, &with);
    static uint64_t here[1024], there[1024];
    struct ibv_mr *region = ibv_reg_mr(domain, here, sizeof here, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *remote = ibv_reg_mr(domain, there, sizeof there, IBV_ACCESS_REMOTE_WRITE);
    struct ibv_send_wr *wr = calloc(batch, sizeof *wr), *bad;
    struct ibv_sge *sge = calloc(batch, sizeof *sge);
    uint64_t begun = now();
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < batch; i++) {
            /* Each list is made anew, for a program's next request is another one. */
            sge[i] = (struct ibv_sge){(uintptr_t)&here[i], 8, region->lkey};
            memset(&wr[i], 0, sizeof wr[i]);
            wr[i].wr_id = round;
            wr[i].next = i + 1 < batch ? &wr[i + 1] : NULL;
            wr[i].sg_list = &sge[i];
            wr[i].num_sge = 1;
            wr[i].send_flags = i + 1 < batch ? 0 : IBV_SEND_SIGNALED;
            wr[i].wr.rdma.remote_addr = (uintptr_t)&there[i];
            wr[i].wr.rdma.rkey = remote->rkey;
            if (is_write) {
                wr[i].opcode = IBV_WR_RDMA_WRITE;
                wr[i].send_flags |= IBV_SEND_INLINE;
            } else if (is_read) {
                wr[i].opcode = IBV_WR_RDMA_READ;
            } else {
                wr[i].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                wr[i].wr.atomic.remote_addr = (uintptr_t)&there[i];
                wr[i].wr.atomic.compare_add = 1;
                wr[i].wr.atomic.rkey = remote->rkey;
            }
        }
        if (ibv_post_send(pair, wr, &bad))
            return 1;
        struct ibv_wc done;
        while (ibv_poll_cq(queue, 1, &done) == 0)
            ;
        if (done.status != IBV_WC_SUCCESS)
            return 1;
    }
    printf("%f\n", (double)(now() - begun) / rounds / batch);
    return 0;
}
