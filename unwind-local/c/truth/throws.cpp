// A program that throws through a few frames, allocates and sorts, until it is killed.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

__attribute__((noinline)) static int deep(int depth, const std::string &name) {
    if (depth == 0) throw std::runtime_error(name);
    std::string longer = name + "x";
    return deep(depth - 1, longer) + static_cast<int>(longer.size());
}

__attribute__((noinline)) static int once(int number) {
    try {
        return deep(number % 12, "thrown");
    } catch (const std::exception &error) {
        return error.what()[0];
    }
}

int main() {
    unsigned sum = 0;
    for (int number = 0;; number++) {
        sum += static_cast<unsigned>(once(number));
        std::vector<std::string> list;
        for (int at = 0; at < 50; at++) list.push_back(std::to_string(at * 7919 % 101));
        std::sort(list.begin(), list.end(), [](const auto &a, const auto &b) { return a < b; });
        sum += static_cast<unsigned>(list[0].size());
        if (sum == 1) return 1;
    }
}
