#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

static volatile size_t sum;

__attribute__((noinline)) static size_t descend(unsigned level, unsigned round) {
    std::string text = std::to_string(round) + " is the number of the round";
    if (level) return descend(level - 1, round) + text.size();
    std::vector<std::string> list;
    for (unsigned i = 0; i < 30; i++) list.push_back(std::to_string(i * round * 7919 % 101));
    std::sort(list.begin(), list.end());
    if (round % 3 == 0) throw std::runtime_error(list[0]);
    return list[0].size();
}

int main() {
    for (unsigned round = 1;; round++) {
        try {
            sum = sum + descend(round % 12, round);
        } catch (const std::exception &) {
            sum = 0;
        }
    }
}
