# A guest of one boot sector that never stops writing: each round it checks what it wrote to 16 MiB in the round before, and writes
# anew. It prints a dot after each round; after a wrong word it prints "!" and halts. ci/rows/migration moves it between two hosts.
.set first, 0x100000
.set end, first + 16 * 1024 * 1024
.set serial, 0x3f8

.code16
.globl _start
_start:
  cli
  xorw %ax, %ax
  movw %ax, %ds
  inb $0x92, %al
  orb $2, %al  # addresses above 1 MiB
  outb %al, $0x92
  lgdtl gdt_pointer
  movl %cr0, %eax
  orl $1, %eax
  movl %eax, %cr0
  ljmpl $8, $protected

.code32
protected:
  movw $16, %ax
  movw %ax, %ds
  xorl %ebx, %ebx  # the round
round:
  movl $first, %edi
page:
  # A word is its page's address xor the round, so a page in another's place is noticed too.
  movl %edi, %ecx
  xorl %ebx, %ecx
  testl %ebx, %ebx
  jz write
  leal -1(%ebx), %edx
  xorl %edi, %edx
  cmpl %edx, (%edi)
  jne wrong
  cmpl %edx, 2048(%edi)
  jne wrong
  cmpl %edx, 4092(%edi)
  jne wrong
write:
  movl %ecx, (%edi)
  movl %ecx, 2048(%edi)
  movl %ecx, 4092(%edi)
  addl $4096, %edi
  cmpl $end, %edi
  jb page
  incl %ebx
  movb $'.', %al
  movw $serial, %dx
  outb %al, %dx
  jmp round
wrong:
  movb $'!', %al
  movw $serial, %dx
  outb %al, %dx
halt:
  hlt
  jmp halt

.balign 8
gdt:
  .quad 0
  .quad 0x00cf9a000000ffff  # code
  .quad 0x00cf92000000ffff  # data
gdt_pointer:
  .word gdt_pointer - gdt - 1
  .long gdt
.org 510
.word 0xaa55
