// A library whose calls are bound lazily, each time that it is loaded.
#include <stdlib.h>
#include <string.h>

int binds(const char *text) {
    char *end;
    long found = labs(atol(text)) + abs(atoi(text)) + strtol(text, &end, 10) + (long)strlen(text);
    found += strcmp(text, end) + (strchr(text, '2') != NULL) + (strrchr(text, '2') != NULL);
    return found + (strstr(text, "12") != NULL) + (memchr(text, '1', 2) != NULL) != 0;
}
