//! Why a goal is not reached: what the table says under a figure that misses it. ARCHITECTURE.md, "What a packet costs", has the
//! profile that shows it.

/// What stands between the figure of this name and its goal.
pub fn of(figure: &str) -> Option<&'static str> {
    let (port, what) = figure.split_once('-')?;
    match (port, what) {
        ("rxe", _) => Some(
            "both go through the guest's kernel and its emulated processor; our code has 5 to 18 % of that processor's time, so \
             none of it at all would not reach 5 and 10",
        ),
        ("af_packet", "send-64") => Some(
            "a message is acknowledged, and over AF_PACKET an acknowledgement is one more frame through the kernel before the \
             answer; the echo has none",
        ),
        ("af_packet", _) => Some(
            "sendto(2) has 80 % of the sender's time, the kernel's own way of a frame: were the rest free, it would be 0.86 of testpmd's \
             rate",
        ),
        (_, "send-64") => Some(
            "an echo reads no byte of its frame; a message is posted, sealed, checked, placed, acknowledged and completed, 3,700 \
             instructions of which two ICRCs and the acknowledgement must be",
        ),
        (_, "write-64") => Some(
            "2,150 instructions a message on the core that sends: six tenths queue pair, headers, rings and turns, no function a tenth",
        ),
        ("ring", "write-64k-1k") => Some(
            "of each 1 KiB packet's time four tenths are the ICRC, a tenth the copy, half headers, queue pair and rings, which 4 KiB have \
             but once",
        ),
        (_, "write-64k-1k") => Some(
            "of each 1 KiB packet's time a third is the ICRC, a fifth the driver's copy, a third headers, queue pair and rings, which 4 KiB \
             have but once",
        ),
        ("virtio", _) => Some(
            "vhost's copy takes a third of the core that also sums each frame (a third) and places it; two thirds where the machine \
             hands bytes over slowly",
        ),
        ("ring", "write-4k" | "write-64k" | "read-64k") => Some(
            "frames stay where the other core wrote them: the receiver's ICRC, the first to read their lines, has half of its time, the \
             sender's copy, to lines that the receiver had last, a third of its",
        ),
        (_, "write-4k") => Some(
            "a copy (30 ns) and a CRC (75 ns) of 4 KiB on each side, in the cache; testpmd touches no byte of the payload",
        ),
        (_, "write-64k" | "read-64k") => Some(
            "the yardstick stays within one core's caches; here two hand the bytes over, and the machine does that at the rate below",
        ),
        ("scale", _) => Some(
            "a packet meets lines of its queue pair that no cache holds any more, of 170 MB where there are 100,000; its instructions \
             hardly grow",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_missed_says_why() {
        for name in
            ["ring-send-64", "virtio-write-4k", "af_packet-write-4k", "rxe-write-lat", "memif-read-64k"]
        {
            assert!(super::of(name).is_some(), "{name}");
        }
        assert_eq!(super::of("idle-qp"), None);
    }
}
