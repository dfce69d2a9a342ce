// SPDX-License-Identifier: MIT OR GPL-2.0
//
// Maps. Elements stay where they are; one that is deleted is overwritten.
#pragma once

#define ELEMENTS 256
struct map {
	void *name;
	u32 is_hash, key, value;
	u32 used;
	struct {
		u32 is_there, unused;
		char *bytes; // eight for the hash of a short key, then the value
		char key[24];
	} element[ELEMENTS];
};
static struct map maps[9];
static u64 image[15] = {
	0, 1, 2 | 0x40ull << 32, 0, 2ull << 32, 0x10000 | 0x20800ull << 32, 0, 0, 0,
	RULE_ORDINARY | CFA_SP << 8 | AT_CFA << 24, 16, (u64)(u32)-8 << 32, RULE_OUTERMOST, 0, 0,
};

static struct map *map_of(void *name)
{
	for (u32 i = 0; i < 9; i++)
		if (maps[i].name == name)
			return &maps[i];
	fprintf(stderr, "an unknown map\n");
	exit(1);
}

static void *element_of(struct map *map, void *key)
{
	u32 at = *(u32 *)key;

	if (!map->is_hash) {
		if (map->name == &cpus || map->name == &calls_now)
			at = cpu;
		if (at >= ELEMENTS)
			return 0;
		if (!map->element[at].bytes)
			map->element[at].bytes = calloc(1, 8 + map->value);
		return map->element[at].bytes + 8;
	}
	for (u32 i = 0; i < map->used; i++)
		if (map->element[i].is_there && !memcmp(map->element[i].key, key, map->key))
			return map->element[i].bytes + 8;
	return 0;
}

static void *lookup(void *name, void *key)
{
	u32 at = *(u32 *)key;
	void *found;

	if (name == image)
		return at < 15 ? &image[at] : 0;
	interrupt();
	found = name == &images ? (at ? 0 : image) : element_of(map_of(name), key);
	interrupt();
	return found;
}

static long update(void *name, void *key, void *value, u64 flags)
{
	struct map *map = map_of(name);

	interrupt();
	if (element_of(map, key) && flags == BPF_NOEXIST)
		return -17;
	if (map->used == ELEMENTS)
		return -7;
	map->element[map->used].is_there = 1;
	memcpy(map->element[map->used].key, key, map->key);
	map->element[map->used].bytes = malloc(8 + map->value);
	memcpy(map->element[map->used].bytes, key, map->key < 8 ? map->key : 8);
	memcpy(map->element[map->used].bytes + 8, value, map->value);
	map->used++;
	interrupt();
	return 0;
}

static long delete(void *name, void *key)
{
	struct map *map = map_of(name);

	interrupt();
	for (u32 i = 0; i < map->used; i++) {
		if (!map->element[i].is_there || memcmp(map->element[i].key, key, map->key))
			continue;
		map->element[i].is_there = 0;
		if (name == &tasks) {
			struct work *work = (struct work *)((struct task_state *)(map->element[i].bytes + 8))->work.opaque;

			if (work)
				work->state = FREED;
		}
		memset(map->element[i].bytes, 0xa5, 8 + map->value);
	}
	interrupt();
	return 0;
}
