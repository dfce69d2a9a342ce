/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A program that does what it can against who walks its stack: tables that change while they are read or are
 * unmapped, stacks that lead in circles and into the kernel, 10,000 mappings, pages that a thread of its own holds
 * back (userfaultfd).
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile uint64_t sink;

static void spin(unsigned count)
{
	for (unsigned at = 0; at < count; at++)
		sink++;
}

/* Runs `code` for a while with a stack and a frame pointer of its own choice. */
static void run_with(void *code, uint64_t *stack, uint64_t frame)
{
	__asm__ volatile("push %%rbp; push %%rbx; mov %%rsp, %%r12; mov %1, %%rsp; mov %2, %%rbp; mov $300000, %%ecx;"
			 "call *%0; mov %%r12, %%rsp; pop %%rbx; pop %%rbp"
			 :
			 : "r"(code), "r"(stack), "r"(frame)
			 : "rax", "rcx", "r12", "memory");
}

/* dec %ecx; jne; ret */
static const unsigned char loop[] = { 0xff, 0xc9, 0x75, 0xfc, 0xc3 };

static void *code_page(void)
{
	unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memcpy(page + 2048, loop, sizeof(loop));
	return page;
}

static uint64_t seed = 1;

static uint64_t random_word(void)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return seed >> 11;
}

/* An ELF image in memory whose headers and tables change all the time. */
static void *lying_tables(void *unused)
{
	Elf64_Ehdr header = { .e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64 }, .e_phoff = 64, .e_phentsize = 56, .e_phnum = 2 };
	Elf64_Phdr load = { .p_type = PT_LOAD, .p_flags = PF_X, .p_filesz = 4096, .p_memsz = 4096 };
	Elf64_Phdr table = { .p_type = 0x6474e554, .p_vaddr = 256, .p_memsz = 1700 };

	(void)unused;
	for (;;) {
		unsigned char *page = code_page();

		memcpy(page, &header, sizeof(header));
		memcpy(page + 64, &load, sizeof(load));
		table.p_type = 0x6474e550 + random_word() % 2 * 4;
		memcpy(page + 120, &table, sizeof(table));
		memcpy(page + 256, "\xe2\xde\x01\x01\x03\x00\xf8\x00", 8);
		for (unsigned at = 264; at < 2000; at++)
			page[at] = random_word() % 3 ? 0 : random_word();
		for (int turn = 0; turn < 8; turn++) {
			static __thread uint64_t stack[512];

			for (unsigned at = 0; at < 512; at++)
				stack[at] = (uint64_t)(random_word() % 2 ? (void *)(page + 2048) : (void *)&stack[random_word() % 512]);
			run_with(page + 2048, stack + 256, (uint64_t)&stack[random_word() % 512]);
			page[256 + random_word() % 1700] = random_word();
		}
		munmap(page, 4096);
	}
	return NULL;
}

static void *crafted_stacks(void *unused)
{
	unsigned char *page = code_page();
	static uint64_t stack[512];

	(void)unused;
	for (;;) {
		for (unsigned at = 0; at < 512; at++)
			stack[at] = random_word() % 4 == 0 ? 0xffffffff81000000 + random_word() % 0x1000000 :
				    random_word() % 2      ? (uint64_t)&stack[random_word() % 512] :
							     random_word();
		run_with(page + 2048, stack + 256, random_word() % 2 ? (uint64_t)&stack[200] : 0xffff888000000000 + random_word());
	}
	return NULL;
}

/* A frame pointer into memory of which no page ever comes. */
static void *held_back(void *unused)
{
	struct uffdio_api api = { .api = UFFD_API };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	uint64_t *area = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { .range = { (uint64_t)(uintptr_t)area, 1 << 20 }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	static uint64_t stack[512];
	unsigned char *page = code_page();
	uint64_t frame[2] = { (uint64_t)(uintptr_t)area + 4096, (uint64_t)(uintptr_t)page + 2048 };

	(void)unused;
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) < 0 || ioctl(fd, UFFDIO_REGISTER, &range) < 0) {
		printf("no userfaultfd\n");
		return NULL;
	}
	printf("HELD BACK\n");
	fflush(stdout);
	memcpy(stack + 300, frame, sizeof(frame));
	for (;;)
		run_with(page + 2048, stack + 256, (uint64_t)(uintptr_t)area + 8192);
	return NULL;
}

static void *many_mappings(void *unused)
{
	static unsigned char *pages[10000];

	(void)unused;
	for (unsigned turn = 0;; turn++) {
		unsigned at = turn % 10000;
		static uint64_t stack[512];

		if (pages[at])
			munmap(pages[at], 4096);
		pages[at] = code_page();
		if (pages[at] == MAP_FAILED) {
			pages[at] = NULL;
			continue;
		}
		mmap(pages[at] + 4096, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (unsigned word = 0; word < 512; word++)
			stack[word] = (uint64_t)(uintptr_t)pages[random_word() % (at + 1)] + 2048;
		run_with(pages[at] + 2048, stack + 256, (uint64_t)&stack[300]);
	}
	return NULL;
}

int main(void)
{
	void *(*acts[])(void *) = { lying_tables, lying_tables, crafted_stacks, held_back, many_mappings };
	pthread_t id;

	for (unsigned at = 0; at < sizeof(acts) / sizeof(acts[0]); at++)
		pthread_create(&id, NULL, acts[at], NULL);
	for (;;)
		spin(1000000);
}
