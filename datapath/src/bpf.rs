//! An assembler for eBPF programs: instructions, and forward jumps to labels.
//!
//! Used for the filter that drops RoCEv2 packets before the kernel's IP layer, the XDP program of AF_XDP ports, and the TCP congestion
//! control programs.

pub(crate) mod btf;
pub(crate) mod call;

/// Registers. Loads, calls and the program return in R0. R1 to R5 are the arguments of calls. Calls preserve R6 to R9.
pub(crate) const R0: u8 = 0;
pub(crate) const R1: u8 = 1;
pub(crate) const R2: u8 = 2;
pub(crate) const R3: u8 = 3;
pub(crate) const R4: u8 = 4;
pub(crate) const R5: u8 = 5;
pub(crate) const R6: u8 = 6;
pub(crate) const R7: u8 = 7;
pub(crate) const R8: u8 = 8;
pub(crate) const R9: u8 = 9;
/// The read-only frame pointer (R10). The stack is below it.
pub(crate) const STACK: u8 = 10;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    /// Destination register in the low four bits, source register in the high four.
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) value: i32,
}

#[derive(Clone, Copy)]
pub(crate) struct Label(usize);

#[derive(Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    places: Vec<usize>,
}

impl Assembler {
    pub(crate) fn emit(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) {
        self.code.push(Instruction { code, registers: to | from << 4, offset, value });
    }

    pub(crate) fn label(&mut self) -> Label {
        self.places.push(usize::MAX);
        Label(self.places.len() - 1)
    }

    pub(crate) fn place(&mut self, label: Label) {
        self.places[label.0] = self.code.len();
    }

    pub(crate) fn jump(&mut self, code: u8, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(code, R0, 0, 0, value);
    }

    pub(crate) fn always(&mut self, to: Label) {
        self.jump(0x05, 0, to);
    }

    /// Jumps if the low 32 bits of R0 equal `value`.
    pub(crate) fn if_equal(&mut self, value: u32, to: Label) {
        self.jump(0x16, value as i32, to);
    }

    pub(crate) fn unless_equal(&mut self, value: u32, to: Label) {
        self.jump(0x56, value as i32, to);
    }

    /// Loads a byte of the packet, at an offset from the Ethernet header, into R0 in host order. The program ends with 0 if the packet is
    /// too short.
    pub(crate) fn byte(&mut self, at: i32) {
        self.emit(0x30, 0, 0, 0, at);
    }

    pub(crate) fn half(&mut self, at: i32) {
        self.emit(0x28, 0, 0, 0, at);
    }

    pub(crate) fn word(&mut self, at: i32) {
        self.emit(0x20, 0, 0, 0, at);
    }

    pub(crate) fn verdict(&mut self, verdict: i32) {
        self.set(R0, verdict);
        self.end();
    }

    /// Jumps if `left` is above `right`, compared as unsigned 64-bit numbers.
    pub(crate) fn if_above(&mut self, left: u8, right: u8, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(0x2d, left, right, 0, 0);
    }

    pub(crate) fn copy(&mut self, to: u8, from: u8) {
        self.emit(0xbf, to, from, 0, 0);
    }

    pub(crate) fn add(&mut self, to: u8, value: i32) {
        self.emit(0x07, to, 0, 0, value);
    }

    pub(crate) fn set(&mut self, to: u8, value: i32) {
        self.emit(0xb7, to, 0, 0, value);
    }

    /// Loads 32 bits of memory, in native byte order.
    pub(crate) fn load_word(&mut self, to: u8, from: u8, offset: i16) {
        self.emit(0x61, to, from, offset, 0);
    }

    pub(crate) fn load_half(&mut self, to: u8, from: u8, offset: i16) {
        self.emit(0x69, to, from, offset, 0);
    }

    pub(crate) fn load_byte(&mut self, to: u8, from: u8, offset: i16) {
        self.emit(0x71, to, from, offset, 0);
    }

    pub(crate) fn load_double(&mut self, to: u8, from: u8, offset: i16) {
        self.emit(0x79, to, from, offset, 0);
    }

    pub(crate) fn store_double(&mut self, to: u8, offset: i16, from: u8) {
        self.emit(0x7b, to, from, offset, 0);
    }

    pub(crate) fn store_word(&mut self, to: u8, offset: i16, from: u8) {
        self.emit(0x63, to, from, offset, 0);
    }

    /// Jumps if `left` is not above `right`, compared as unsigned 64-bit numbers.
    pub(crate) fn unless_above(&mut self, left: u8, right: u8, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(0xbd, left, right, 0, 0);
    }

    pub(crate) fn if_null(&mut self, to: Label) {
        self.jump(0x15, 0, to);
    }

    pub(crate) fn call(&mut self, helper: i32) {
        self.emit(0x85, 0, 0, 0, helper);
    }

    /// Calls a kernel function (kfunc) by its BTF id.
    pub(crate) fn call_kernel(&mut self, function: u32) {
        self.emit(0x85, 0, 2, 0, function as i32);
    }

    pub(crate) fn load_map(&mut self, to: u8, map: i32) {
        self.emit(0x18, to, 1, 0, map);
        self.emit(0, 0, 0, 0, 0);
    }

    pub(crate) fn end(&mut self) {
        self.emit(0x95, 0, 0, 0, 0);
    }

    /// Loads 16 bits in network byte order into R0.
    pub(crate) fn load_network_half(&mut self, from: u8, offset: i16) {
        self.load_half(R0, from, offset);
        self.emit(0xdc, R0, 0, 0, 16);
    }

    pub(crate) fn length(&self) -> usize {
        self.code.len()
    }

    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (from, to) in self.jumps {
            self.code[from].offset = (self.places[to.0] - from - 1) as i16;
        }
        self.code
    }
}

#[cfg(test)]
pub(crate) mod processor {
    use super::Instruction;

    /// The address of the frame in the program's memory. A load from a lower address reads the program's context.
    pub(crate) const FRAME: u64 = 1 << 32;
    /// The value that every call returns.
    pub(crate) const CALLED: i32 = 4;

    /// Returns the program's verdict on `frame`. `context` returns the field of the program's context at an offset.
    pub(crate) fn run(program: &[Instruction], frame: &[u8], context: impl Fn(i16) -> u64) -> i32 {
        let mut registers = [0_u64; 11];
        let mut at = 0;
        loop {
            let Instruction { code, registers: both, offset, value } = program[at];
            let (to, from) = (usize::from(both & 15), usize::from(both >> 4));
            at += 1;
            let packet = |start: u64, length: usize| {
                let bytes = frame.get(start as usize..start as usize + length)?;
                Some(bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
            };
            let source = registers[from];
            let memory = |length: usize| {
                let start = (source + offset as u64 - FRAME) as usize;
                let bytes = &frame[start..start + length];
                bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
            };
            let loaded = match code {
                0x20 => packet(value as u64, 4),
                0x28 => packet(value as u64, 2),
                0x30 => packet(value as u64, 1),
                0x48 => packet(source + value as u64, 2),
                _ => Some(registers[0]),
            };
            let Some(loaded) = loaded else { return 0 };
            registers[0] = loaded;
            let jumps = match code {
                0x05 => true,
                0x16 => registers[to] as u32 == value as u32,
                0x56 => registers[to] as u32 != value as u32,
                0x45 => registers[to] & value as u64 != 0,
                0x2d => registers[to] > source,
                _ => false,
            };
            match code {
                0x05 | 0x16 | 0x56 | 0x45 | 0x2d => at += if jumps { offset as usize } else { 0 },
                0x18 => at += 1,
                0x20 | 0x28 | 0x30 | 0x48 => {}
                0x61 if source < FRAME => registers[to] = context(offset),
                0x61 => registers[to] = memory(4),
                0x69 => registers[to] = memory(2),
                0x71 => registers[to] = memory(1),
                0xdc => registers[to] = (registers[to] as u16).swap_bytes().into(),
                0x57 => registers[to] &= value as u64,
                0x67 => registers[to] <<= value,
                0x07 => registers[to] += value as u64,
                0x0f => registers[to] += source,
                0xb7 => registers[to] = value as u64,
                0xbf => registers[to] = source,
                0x85 => registers[0] = CALLED as u64,
                0x95 => return registers[0] as i32,
                other => panic!("instruction {other:#x}"),
            }
        }
    }
}
