/* Prints the three words that occur most often in a text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4096 };

struct word {
    struct word *next;
    unsigned count;
    char text[64];
};

static struct word *buckets[BUCKETS];

static unsigned hash(const char *text) {
    unsigned sum = 0;
    while (*text)
        sum += (unsigned char)*text++;
    return sum % BUCKETS;
}

static struct word *find(const char *text) {
    struct word **bucket = &buckets[hash(text)];
    for (struct word *word = *bucket; word; word = word->next)
        if (!strcmp(word->text, text))
            return word;
    struct word *word = calloc(1, sizeof *word);
    strcpy(word->text, text);
    word->next = *bucket;
    return *bucket = word;
}

static void count(FILE *file) {
    char text[64];
    while (fscanf(file, "%63s", text) == 1)
        find(text)->count++;
}

static struct word *most_frequent(void) {
    static struct word none;
    struct word *most = &none;
    for (int i = 0; i < BUCKETS; i++)
        for (struct word *word = buckets[i]; word; word = word->next)
            if (word->count > most->count)
                most = word;
    return most;
}

int main(void) {
    count(stdin);
    for (int i = 0; i < 3; i++) {
        struct word *word = most_frequent();
        printf("%7u %s\n", word->count, word->text);
        word->count = 0;
    }
}
