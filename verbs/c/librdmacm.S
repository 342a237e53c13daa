/*
 * librdmacm.so.1 contains no code of its own: each of its functions jumps to the one of libibverbs.so.1, so that a process that has loaded both
 * has one copy of all state. `scripts/build` appends a line for each name in librdmacm.map. A jump keeps every argument, also of variadic functions,
 * and leaves no stack frame (pthread_cancel(3)).
 */
	.section .note.GNU-stack, "", %progbits
	.text

	.macro forward name
	.globl	\name
	.type	\name, %function
	.balign	16
\name:
#if defined(__x86_64__)
	jmp	ferroce_private_\name@PLT
#elif defined(__aarch64__)
	b	ferroce_private_\name
#elif defined(__riscv)
	tail	ferroce_private_\name@plt
#else
#error librdmacm.S has no jump for this processor: add its instruction for a tail call by the PLT
#endif
	.size	\name, . - \name
	.endm
