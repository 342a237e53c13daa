/*
 * librdmacm.so.1 contains no code of its own: each of its functions jumps to the one of libibverbs.so.1, so that a process that has loaded both
 * has one copy of all state. `scripts/build` appends a line for each name in librdmacm.map. A jump keeps every argument, also of variadic functions,
 * and leaves no stack frame (pthread_cancel(3)).
 *
 * Some functions of libibverbs.so.1 have a second symbol version, which jumps to the first. An alias would do only in the object file that
 * defines the function, because the linker assigns two versions to one symbol only there.
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
#error jumps.S has no jump for this processor: add its instruction for a tail call through the PLT
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
