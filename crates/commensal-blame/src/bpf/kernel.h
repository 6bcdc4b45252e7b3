/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The few kernel types that are looked into, as CO-RE relocates them: neither vmlinux.h nor a kernel tree is needed.
 * Fields are named here as Linux names them; offsets come from the BTF of the kernel that runs.
 */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;
#define false 0
#define true 1

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_NOEXIST = 1, BPF_F_NO_PREALLOC = 1, BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };
enum { PF_KTHREAD = 0x00200000 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct kernfs_node {
	u64 id;
};
struct cgroup;
struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};
struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};
struct css_set {
	struct cgroup *dfl_cgrp;
};
struct task_group {
	struct cgroup_subsys_state css;
};
struct thread_info {
	u32 cpu;
};
struct sched_entity {
	unsigned char sched_delayed;	/* since 6.12 */
};
struct sched_info {
	unsigned long long run_delay;
};
struct task_struct {
	struct sched_info sched_info;
	struct thread_info thread_info;
	unsigned int flags;
	unsigned int on_cpu, on_rq;	/* u8 since 7.2; only unsigned fields may change their size */
	struct sched_entity se;
	struct task_group *sched_task_group;
	struct css_set *cgroups;
	int pid, tgid;
};
struct task_struct___old {
	u32 cpu;			/* before 5.16 */
};
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};
#pragma clang attribute pop
