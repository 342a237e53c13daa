//! Generates an ELF object with an XDP program and a map of sockets, which DPDK's AF_XDP driver loads through libbpf.
//!
//! DPDK's own program redirects every frame of a queue to the socket. The driver accepts another program only as a file with a map
//! `xsks_map` described by BTF. So this module generates the file that clang would.

use crate::bpf::Instruction;

/// The program's name in the kernel's list of programs.
pub(super) const NAME: &str = "ferroce_xdp";
const SECTIONS: [&str; 9] =
    ["", "xdp", ".relxdp", ".maps", "license", ".BTF", ".symtab", ".strtab", ".shstrtab"];
const EM_BPF: u16 = 247;
const ELF_HEADER: usize = 64;
const SECTION_HEADER: usize = 64;
/// Bytes of the map's definition: four pointers.
const MAP_BYTES: u32 = 32;
/// `BPF_MAP_TYPE_XSKMAP`.
const XSKMAP: u32 = 17;

/// A string table: NUL-terminated strings, of which the first is empty.
#[derive(Default)]
struct Texts(Vec<u8>);

impl Texts {
    fn add(&mut self, text: &str) -> u32 {
        if self.0.is_empty() {
            self.0.push(0);
        }
        if text.is_empty() {
            return 0;
        }
        let at = self.0.len() as u32;
        self.0.extend(text.bytes());
        self.0.push(0);
        at
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Returns an object with `program` and a map of `queues` sockets, which the instruction at index `map` loads.
pub(super) fn object(program: &[Instruction], map: usize, queues: u32) -> Vec<u8> {
    let mut names = Texts::default();
    let code: Vec<u8> = program.iter().flat_map(bytes_of).collect();
    let symbols = symbols(&mut names, code.len() as u64);
    // Symbol 2 is the map. Relocation type 1 (R_BPF_64_64) is a 64-bit value in two instructions.
    let relocation = [(map * 8) as u64, 2 << 32 | 1].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut titles = Texts::default();
    let title: Vec<u32> = SECTIONS.iter().map(|section| titles.add(section)).collect();
    let contents: [Vec<u8>; SECTIONS.len()] = [
        Vec::new(),
        code,
        relocation,
        vec![0; MAP_BYTES as usize],
        b"Dual MIT/GPL\0".to_vec(),
        btf(queues),
        symbols,
        names.0,
        titles.0,
    ];
    // Type, flags, link, info and entry size of each section.
    let kinds: [(u32, u64, u32, u32, u64); SECTIONS.len()] = [
        (0, 0, 0, 0, 0),
        (1, 6, 0, 0, 0),
        (9, 0, 6, 1, 16),
        (1, 3, 0, 0, 0),
        (1, 3, 0, 0, 0),
        (1, 0, 0, 0, 0),
        (2, 0, 7, 1, 24),
        (3, 0, 0, 0, 0),
        (3, 0, 0, 0, 0),
    ];
    let mut body = Vec::new();
    let mut headers = Vec::new();
    for ((content, kind), title) in contents.iter().zip(kinds).zip(title) {
        body.resize(body.len().next_multiple_of(8), 0);
        let (kind, flags, link, information, entry) = kind;
        let at = if kind == 0 { 0 } else { (ELF_HEADER + body.len()) as u64 };
        headers.extend(words(&[title, kind]));
        headers.extend([flags, 0, at, content.len() as u64].iter().flat_map(|word| word.to_ne_bytes()));
        headers.extend(words(&[link, information]));
        let alignment = if kind == 0 { 0 } else { 8_u64 };
        headers.extend([alignment, entry].iter().flat_map(|word| word.to_ne_bytes()));
        body.extend(content);
    }
    body.resize(body.len().next_multiple_of(8), 0);
    [header(body.len()), body, headers].concat()
}

fn bytes_of(instruction: &Instruction) -> Vec<u8> {
    let Instruction { code, registers, offset, value } = *instruction;
    [&[code, registers], &offset.to_ne_bytes()[..], &value.to_ne_bytes()].concat()
}

fn symbols(names: &mut Texts, code: u64) -> Vec<u8> {
    const GLOBAL_OBJECT: u8 = 1 << 4 | 1;
    const GLOBAL_FUNCTION: u8 = 1 << 4 | 2;
    let mut symbols = vec![0; 24];
    for (name, kind, section, size) in
        [(NAME, GLOBAL_FUNCTION, 1_u16, code), ("xsks_map", GLOBAL_OBJECT, 3, MAP_BYTES.into())]
    {
        symbols.extend(names.add(name).to_ne_bytes());
        symbols.extend([kind, 0]);
        symbols.extend(section.to_ne_bytes());
        symbols.extend([0, size].iter().flat_map(|word: &u64| word.to_ne_bytes()));
    }
    symbols
}

/// Returns BTF for the map, as `__uint(type, ..)` of bpf_helpers.h declares it: each number is the length of an array.
fn btf(queues: u32) -> Vec<u8> {
    const INT: u32 = 1 << 24;
    const POINTER: u32 = 2 << 24;
    const ARRAY: u32 = 3 << 24;
    const STRUCT: u32 = 4 << 24;
    const VARIABLE: u32 = 14 << 24;
    const DATA_SECTION: u32 = 15 << 24;
    let mut names = Texts::default();
    // Type 1: a signed 32-bit integer.
    let mut types = vec![names.add("int"), INT, 4, 1 << 24 | 32];
    let fields = [("type", XSKMAP), ("key_size", 4), ("value_size", 4), ("max_entries", queues)];
    // Types 2 to 9: for each field an array, and a pointer to it.
    for (n, (_, number)) in (0_u32..).zip(fields) {
        types.extend([0, ARRAY, 0, 1, 1, number]);
        types.extend([0, POINTER, 2 + 2 * n]);
    }
    // Type 10: the structure, with the offset of each field in bits.
    types.extend([0, STRUCT | fields.len() as u32, MAP_BYTES]);
    for (n, (name, _)) in (0_u32..).zip(fields) {
        types.extend([names.add(name), 3 + 2 * n, 64 * n]);
    }
    // Type 11: a global variable of that type. Type 12: the section that contains it.
    types.extend([names.add("xsks_map"), VARIABLE, 10, 1]);
    types.extend([names.add(".maps"), DATA_SECTION | 1, MAP_BYTES, 11, 0, MAP_BYTES]);
    let (types, names) = (words(&types), names.0);
    let head = words(&[24, 0, types.len() as u32, types.len() as u32, names.len() as u32]);
    // Magic number, version 1, no flags.
    [&0xeb9f_u16.to_ne_bytes()[..], &[1, 0], &head, &types, &names].concat()
}

fn header(body: usize) -> Vec<u8> {
    let order = if cfg!(target_endian = "little") { 1 } else { 2 };
    let mut header = vec![0x7f, b'E', b'L', b'F', 2, order, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header.extend([1, EM_BPF].iter().flat_map(|half: &u16| half.to_ne_bytes()));
    header.extend(1_u32.to_ne_bytes());
    header.extend([0, 0, (ELF_HEADER + body) as u64].iter().flat_map(|word| word.to_ne_bytes()));
    header.extend(0_u32.to_ne_bytes());
    let count = SECTIONS.len() as u16;
    let halves = [ELF_HEADER as u16, 0, 0, SECTION_HEADER as u16, count, count - 1];
    header.extend(halves.iter().flat_map(|half| half.to_ne_bytes()));
    header
}
