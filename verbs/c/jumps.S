/*
 * librdmacm.so.1 contains no code of its own: each of its functions jumps to the one of libibverbs.so.1, so that a process that has loaded both
 * has one copy of all state. `scripts/build` appends a line for each name in librdmacm.map. A jump keeps every argument, also of variadic functions,
 * and leaves no stack frame (pthread_cancel(3)).
 *
 * libibverbs.so.1 has functions with a second version, which jump to the first one. The linker would give two versions of one symbol to an
 * alias only in the file that defines it.
 */
	.section .note.GNU-stack, "", %progbits
	.text

	.macro jump name, target
	.globl	\name
	.type	\name, %function
	.balign	16
\name:
#if defined(__x86_64__)
	jmp	\target@PLT
#elif defined(__aarch64__)
	b	\target
#elif defined(__riscv)
	tail	\target@plt
#else
#error jumps.S has no jump for this processor: add its instruction for a tail call by the PLT
#endif
	.size	\name, . - \name
	.endm

	.macro forward name
	jump	\name, ferroce_private_\name
	.endm

	.macro older name, version
	jump	ferroce_older_\name, \name
	.symver	ferroce_older_\name, \name@\version
	.endm
