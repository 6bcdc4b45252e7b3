/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* In place of libbpf's headers: what the probe's programs call, for a C compiler of this machine. */
#pragma once

#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
#define SEC(name)
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define BPF_PROG(name, ...) name(__VA_ARGS__)

#define bpf_core_field_exists(...) 1
#define bpf_core_field_offset(type, field) __builtin_offsetof(type, field)
#define bpf_core_type_size(type) sizeof(type)
#define OF_TWO(from, field) ((from)->field)
#define OF_THREE(from, first, field) ({ typeof((from)->first) at = (from)->first; at ? at->field : 0; })
#define OF_MANY(one, two, three, name, ...) name
#define BPF_CORE_READ(...) OF_MANY(__VA_ARGS__, OF_THREE, OF_TWO)(__VA_ARGS__)
#define BPF_CORE_READ_STR_INTO(...) ((void)0)

static void *bpf_map_lookup_elem(void *map, const void *key);
static long bpf_map_update_elem(void *map, const void *key, const void *value, u64 flags);
static long bpf_map_delete_elem(void *map, const void *key);
static void *bpf_task_storage_get(void *map, struct task_struct *p, void *value, u64 flags);
static struct task_struct *bpf_get_current_task_btf(void);
static u32 bpf_get_smp_processor_id(void);
static u64 bpf_ktime_get_ns(void);
static u64 bpf_get_current_uid_gid(void);
static long bpf_ringbuf_output(void *ring, void *data, u64 size, u64 flags);
static long bpf_seq_write(struct seq_file *file, const void *data, u32 size);
static long bpf_probe_read_kernel(void *to, u32 size, const void *from);
