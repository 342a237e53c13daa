//! Reads capture files: classic pcap (µs and ns, both byte orders) and pcapng.

mod encapsulation;
mod link;

use link::Link;
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};
use thiserror::Error;

/// The limit on a record, bytes. Capture tools write no longer records, even with jumbo frames.
const LONGEST: u32 = 1 << 20;

/// The limit on interfaces in a pcapng section.
const INTERFACES: usize = 1024;

const SECTION: u32 = 0x0a0d_0d0a;

/// The reason why a capture cannot be read further.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file has an unknown format.
    #[error("not a pcap or pcapng file; name one that tcpdump or ferroce capture has written")]
    Format,
    /// The file ends inside a record.
    #[error("ends inside a record, as a capture that was cut off; end captures by Ctrl-C")]
    Truncated,
    /// A record has an impossible length.
    #[error("a record of {0} bytes, above the limit of {LONGEST}: the file is damaged; capture again")]
    Length(u32),
    /// The link type cannot contain RoCEv2.
    #[error("link type {0} carries no RoCEv2: capture on an Ethernet interface or on `any`")]
    LinkType(u32),
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A captured frame.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The time of the capture, ns since 1970.
    pub time_ns: u64,
    /// The Ethernet frame without QinQ and VXLAN headers; empty if the link type cannot contain RoCEv2. Bytes that were not captured are 0.
    pub bytes: &'a [u8],
    /// True if the snapshot length truncated the frame.
    pub is_cut: bool,
}

#[derive(Clone, Copy)]
struct Order {
    big: bool,
}

impl Order {
    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let word = bytes.get(at..).and_then(|rest| rest.first_chunk().copied()).unwrap_or_default();
        if self.big { u16::from_be_bytes(word) } else { u16::from_le_bytes(word) }
    }

    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let word = bytes.get(at..).and_then(|rest| rest.first_chunk().copied()).unwrap_or_default();
        if self.big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
    }
}

#[derive(Clone, Copy)]
struct Interface {
    /// `None` if the link type cannot contain RoCEv2.
    link: Option<Link>,
    ticks_per_second: u64,
}

enum Format {
    Classic { link: Link, ns_per_tick: u64 },
    Ng { interfaces: HashMap<u32, Interface> },
}

/// A reader of the frames of a capture.
pub struct Reader<R> {
    input: R,
    order: Order,
    format: Format,
    record: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads the header of the file.
    ///
    /// # Errors
    /// Returns an error if the file is not a capture, or its link type cannot contain RoCEv2.
    pub fn new(mut input: R) -> Result<Self, ReadError> {
        let mut magic = [0; 4];
        fill(&mut input, &mut magic)?.then_some(()).ok_or(ReadError::Format)?;
        let (big, ns_per_tick) = match u32::from_be_bytes(magic) {
            0xd4c3_b2a1 => (false, 1000),
            0xa1b2_c3d4 => (true, 1000),
            0x4d3c_b2a1 => (false, 1),
            0xa1b2_3c4d => (true, 1),
            SECTION => return Self::section(input),
            _ => return Err(ReadError::Format),
        };
        let order = Order { big };
        let mut header = [0; 20];
        fill(&mut input, &mut header)?.then_some(()).ok_or(ReadError::Truncated)?;
        let link = order.u32(&header, 16) & 0x0fff_ffff;
        let link = Link::of(link).ok_or(ReadError::LinkType(link))?;
        Ok(Self { input, order, format: Format::Classic { link, ns_per_tick }, record: Vec::new() })
    }

    fn section(input: R) -> Result<Self, ReadError> {
        let format = Format::Ng { interfaces: HashMap::new() };
        let mut reader = Self { input, order: Order { big: false }, format, record: Vec::new() };
        reader.start_section()?;
        Ok(reader)
    }

    /// Returns the next frame, or `None` at the end.
    ///
    /// # Errors
    /// Returns an error if the file is truncated or damaged.
    pub fn next(&mut self) -> Result<Option<Packet<'_>>, ReadError> {
        match self.format {
            Format::Classic { link, ns_per_tick } => self.next_classic(link, ns_per_tick),
            Format::Ng { .. } => self.next_ng(),
        }
    }

    fn next_classic(&mut self, link: Link, ns_per_tick: u64) -> Result<Option<Packet<'_>>, ReadError> {
        let mut header = [0; 16];
        if !fill(&mut self.input, &mut header)? {
            return Ok(None);
        }
        let seconds = u64::from(self.order.u32(&header, 0));
        let ticks = u64::from(self.order.u32(&header, 4));
        self.take(self.order.u32(&header, 8))?;
        let time_ns = seconds * 1_000_000_000 + ticks * ns_per_tick;
        Ok(Some(self.packet(time_ns, Some(link), self.order.u32(&header, 12))))
    }

    /// Returns the packet in `record`, whose length was `original` bytes.
    fn packet(&mut self, time_ns: u64, link: Option<Link>, original: u32) -> Packet<'_> {
        let is_cut = original as usize > self.record.len();
        if is_cut {
            self.record.resize(original.min(LONGEST) as usize, 0);
        }
        match link {
            Some(link) => link.frame(&mut self.record),
            None => self.record.clear(),
        }
        encapsulation::strip(&mut self.record);
        Packet { time_ns, bytes: &self.record, is_cut }
    }

    fn take(&mut self, length: u32) -> Result<(), ReadError> {
        if length > LONGEST {
            return Err(ReadError::Length(length));
        }
        self.record.resize(length as usize, 0);
        if length > 0 && !fill(&mut self.input, &mut self.record)? {
            return Err(ReadError::Truncated);
        }
        Ok(())
    }

    /// Reads a section header after its block type: length, byte order and options.
    fn start_section(&mut self) -> Result<(), ReadError> {
        let mut head = [0; 8];
        fill(&mut self.input, &mut head)?.then_some(()).ok_or(ReadError::Truncated)?;
        self.order = match head[4..] {
            [0x1a, 0x2b, 0x3c, 0x4d] => Order { big: true },
            [0x4d, 0x3c, 0x2b, 0x1a] => Order { big: false },
            _ => return Err(ReadError::Format),
        };
        let length = self.order.u32(&head, 0);
        self.take(length.checked_sub(12).ok_or(ReadError::Length(length))?)?;
        self.format = Format::Ng { interfaces: HashMap::new() };
        Ok(())
    }

    fn next_ng(&mut self) -> Result<Option<Packet<'_>>, ReadError> {
        loop {
            let mut kind = [0; 4];
            if !fill(&mut self.input, &mut kind)? {
                return Ok(None);
            }
            let kind = self.order.u32(&kind, 0);
            if kind == SECTION {
                self.start_section()?;
                continue;
            }
            let mut length = [0; 4];
            fill(&mut self.input, &mut length)?.then_some(()).ok_or(ReadError::Truncated)?;
            let length = self.order.u32(&length, 0);
            self.take(length.checked_sub(8).filter(|rest| *rest >= 4).ok_or(ReadError::Length(length))?)?;
            self.record.truncate(self.record.len() - 4);
            match kind {
                1 => self.add_interface()?,
                6 => return self.enhanced_packet().map(Some),
                3 => return self.simple_packet().map(Some),
                _ => {}
            }
        }
    }

    fn add_interface(&mut self) -> Result<(), ReadError> {
        let interface = Interface {
            link: Link::of(u32::from(self.order.u16(&self.record, 0))),
            ticks_per_second: self.resolution(),
        };
        if let Format::Ng { interfaces } = &mut self.format {
            if interfaces.len() >= INTERFACES {
                return Err(ReadError::Format);
            }
            interfaces.insert(interfaces.len() as u32, interface);
        }
        Ok(())
    }

    /// Returns the ticks per second of option 9: a power of ten, or of two if its top bit is set; 10⁶ without the option.
    fn resolution(&self) -> u64 {
        let mut at = 8;
        while at + 4 <= self.record.len() {
            let (code, length) = (self.order.u16(&self.record, at), self.order.u16(&self.record, at + 2));
            match (code, self.record.get(at + 4)) {
                (0, _) => break,
                (9, Some(&power)) if power & 0x80 != 0 => return 1 << u32::from(power & 0x7f).min(63),
                (9, Some(&power)) => return 10u64.saturating_pow(u32::from(power)),
                _ => at += 4 + usize::from(length).next_multiple_of(4),
            }
        }
        1_000_000
    }

    fn interface(&self, number: u32) -> Result<Interface, ReadError> {
        let Format::Ng { interfaces } = &self.format else { return Err(ReadError::Format) };
        interfaces.get(&number).copied().ok_or(ReadError::Format)
    }

    fn enhanced_packet(&mut self) -> Result<Packet<'_>, ReadError> {
        let interface = self.interface(self.order.u32(&self.record, 0))?;
        let ticks =
            u64::from(self.order.u32(&self.record, 4)) << 32 | u64::from(self.order.u32(&self.record, 8));
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(interface.ticks_per_second);
        let (length, original) = (self.order.u32(&self.record, 12), self.order.u32(&self.record, 16));
        self.record.drain(..20.min(self.record.len()));
        if self.record.len() < length as usize {
            return Err(ReadError::Truncated);
        }
        self.record.truncate(length as usize);
        Ok(self.packet(u64::try_from(ns).unwrap_or(u64::MAX), interface.link, original))
    }

    fn simple_packet(&mut self) -> Result<Packet<'_>, ReadError> {
        let interface = self.interface(0)?;
        let original = self.order.u32(&self.record, 0);
        if self.record.len() < 4 {
            return Err(ReadError::Truncated);
        }
        self.record.drain(..4);
        self.record.truncate(original as usize);
        Ok(self.packet(0, interface.link, original))
    }
}

/// Fills `bytes`. Returns false if the input ended before the first byte.
fn fill(input: &mut impl Read, bytes: &mut [u8]) -> Result<bool, ReadError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match input.read(&mut bytes[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(ReadError::Truncated),
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}
