"""Probes that a host running `ferroce tcp` must not answer, from a packet socket, and the one of an established flow that it must.

tcp-hostile.py serve ADDRESS PORT: accepts connections, and closes each after its peer.
tcp-hostile.py ask INTERFACE MAC ADDRESS PORT: connects, and sends forged probes to the host with this MAC.

Behind each forged probe goes one of the connection. Frames keep their order, so when that is answered the forged one was decided on.
"""

import socket
import struct
import sys

DSCP = 3
ALL, OUTGOING = 3, 4
NETWORKS = ("10.77.0.255", "255.255.255.255")


def serve(address, port):
    with socket.create_server((address, port)) as listener:
        print("listening", flush=True)
        open_ones = []
        while True:
            connection, _ = listener.accept()
            open_ones.append(connection)
            # The second connection is the one that is closed.
            if len(open_ones) == 2:
                connection.recv(1)
                connection.close()


def checksum(header):
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - ((total & 0xFFFF) + (total >> 16))


class Asker:
    def __init__(self, interface, mac, address, port):
        self.mac = bytes.fromhex(mac.replace(":", ""))
        self.wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
        self.wire.bind((interface, 0))
        self.wire.settimeout(10)
        self.source_mac = self.wire.getsockname()[4]
        self.server = (address, port)
        self.number = 0
        self.wrong = 0

    def frame(self, source, destination, mac=None, damaged=False):
        self.number += 1
        (source, source_port), (destination, port) = source, destination
        head = struct.pack("!BBHHHBBH", 0x45, DSCP << 2, 100, 0, 0, 64, 6, 0)
        head += socket.inet_aton(source) + socket.inet_aton(destination)
        head = head[:10] + struct.pack("!H", checksum(head) ^ damaged) + head[12:]
        tcp = struct.pack("!HHIIBBHHH", source_port, port, 1, 0, 0x50, 0x10, 0, 0, 0)
        probe = b"HPC?" + struct.pack("!IQI", self.number, 123, 5) + bytes(40)
        return (mac or self.mac) + self.source_mac + b"\x08\x00" + head + tcp + probe

    def numbers_until(self, last):
        """The numbers of all answers, up to that of `last`."""
        seen = []
        while last not in seen:
            frame, sender = self.wire.recvfrom(2048)
            if sender[2] != OUTGOING and frame[54:58] == b"HPC!":
                seen.append(int.from_bytes(frame[58:62], "big"))
        return seen

    def good(self):
        frame = self.frame(self.ours, self.server)
        self.wire.send(frame)
        return self.number

    def refused(self, what, **deviation):
        deviation = {"source": self.ours, "destination": self.server} | deviation
        self.wire.send(self.frame(**deviation))
        forged, good = self.number, self.good()
        seen = self.numbers_until(good)
        if seen != [good]:
            self.wrong += 1
        print(f"{what}: {'ANSWERED' if forged in seen else 'no answer'}")

    def run(self):
        flow = socket.create_connection(self.server)
        self.ours = flow.getsockname()
        peer, port = self.ours
        server, server_port = self.server
        closed = socket.create_connection(self.server)
        over = closed.getsockname()
        closed.close()
        # The server's end goes, too, while these are answered in turn.
        for _ in range(20):
            self.numbers_until(self.good())
        self.refused("a closed flow", source=over)
        self.refused("a frame for all", mac=b"\xff" * 6)
        self.refused("a frame for a group", mac=bytes.fromhex("01005e000001"))
        self.refused("a frame for another host", mac=bytes.fromhex("02aabbccddee"))
        self.refused("a damaged header", damaged=True)
        for address in ("192.0.2.77", "10.77.0.2", "224.0.0.1", *NETWORKS):
            self.refused(f"to {address}", destination=(address, server_port))
        for address in ("10.9.9.9", "10.77.0.2", "224.0.0.1", "127.0.0.1", "0.0.0.0", server, *NETWORKS):
            self.refused(f"from {address}", source=(address, port))
        self.refused("from another port", source=(peer, port ^ 1))
        self.refused("to another port", destination=(server, server_port ^ 1))
        all_wrong = {"source": ("10.9.9.9", 4000), "destination": ("192.0.2.77", 80), "mac": b"\xff" * 6}
        self.refused("to another address, from a third host, for all", **all_wrong)
        return self.wrong


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    sys.exit(Asker(*sys.argv[2:5], int(sys.argv[5])).run() != 0)
