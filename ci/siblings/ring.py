"""Processes of one host exchange data through the interface that they share, after their parent opened it.

Each process connects an RC queue pair to the next one, writes a pattern of its own there, and checks what it received. Run without
arguments; it exits with 0 if all bytes are as they must be."""
import multiprocessing
import multiprocessing.connection
import sys

from pyverbs import enums
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PROCESSES = 4
LENGTH = 100_000


def pattern(rank):
    return bytes((rank * 37 + at * 7) % 251 for at in range(LENGTH))


def attributes(context, peer, psn):
    route = GlobalRoute(dgid=context.query_gid(1, 0), sgid_index=0)
    attr = QPAttr(port_num=1)
    attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
    attr.path_mtu = context.query_port(1).active_mtu
    attr.dest_qp_num, attr.rq_psn, attr.sq_psn = peer, psn, psn
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
    return attr


def wait(cq):
    while True:
        count, completions = cq.poll()
        if count:
            assert completions[0].status == enums.IBV_WC_SUCCESS, completions[0]
            return


def process(rank, before, after):
    context = Context(name='ferroce0')
    pd, cq = PD(context), CQ(context, 16)
    access = enums.IBV_ACCESS_LOCAL_WRITE
    sent, received = MR(pd, LENGTH, access), MR(pd, LENGTH, access)
    qps = []
    for _ in range(2):
        cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
        qps.append(QP(pd, QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap), QPAttr(port_num=1)))
    to_next, from_before = qps
    before.send(from_before.qp_num)
    after.send(to_next.qp_num)
    from_before.to_rts(attributes(context, before.recv(), 5))
    to_next.to_rts(attributes(context, after.recv(), 5))
    from_before.post_recv(RecvWR(sg=[SGE(received.buf, LENGTH, received.lkey)], num_sge=1))
    sent.write(pattern(rank), LENGTH)
    # All have posted their receives.
    before.send('ready')
    assert after.recv() == 'ready'
    to_next.post_send(SendWR(sg=[SGE(sent.buf, LENGTH, sent.lkey)], num_sge=1))
    wait(cq)
    wait(cq)
    assert received.read(LENGTH, 0) == pattern((rank - 1) % PROCESSES), f'process {rank} received other bytes'
    # No process closes before all are done.
    before.send('done')
    assert after.recv() == 'done'


def main():
    multiprocessing.set_start_method('fork')
    own = Context(name='ferroce0')
    pipes = [multiprocessing.Pipe() for _ in range(PROCESSES)]
    # Pipe n leads from process n to the next.
    ends = [(pipes[rank - 1][1], pipes[rank][0]) for rank in range(PROCESSES)]
    children = [multiprocessing.Process(target=process, args=(rank, *ends[rank])) for rank in range(PROCESSES)]
    for child in children:
        child.start()
    failed = False
    while not failed and (running := [child for child in children if child.is_alive()]):
        multiprocessing.connection.wait(child.sentinel for child in running)
        failed = any(child.exitcode for child in children)
    # The others would wait for it.
    for child in children:
        child.kill()
    own.query_device()
    print(f'{PROCESSES} processes, ' + ('one failed' if failed else 'all exchanged their data'))
    sys.exit(failed)


if __name__ == '__main__':
    main()
