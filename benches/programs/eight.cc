/* Eight functions of different work, each of which takes a part of the time. The first argument says how
   many rounds, the second how many percent more one of them, `Numbers::look_up`, does: no other function
   sees what comes of that. */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#define FUNCTION __attribute__((noinline))

struct Shape {
    virtual ~Shape() = default;
    virtual uint64_t area(uint64_t size) const = 0;
};

template <unsigned Factor> struct Rectangle : Shape {
    FUNCTION uint64_t area(uint64_t size) const override { return size * Factor + (size >> 7); }
};

class Numbers {
    std::vector<uint32_t> table = std::vector<uint32_t>(1 << 15);
    std::map<uint64_t, uint64_t> counts;
    std::vector<std::unique_ptr<Shape>> shapes;
    volatile uint64_t unused;

public:
    uint64_t value = 88172645463325252u;

    Numbers() {
        for (auto &entry : table)
            entry = (uint32_t)(value = value * 6364136223846793005u + 1);
        shapes.push_back(std::make_unique<Rectangle<3>>());
        shapes.push_back(std::make_unique<Rectangle<5>>());
    }

    FUNCTION void multiply(int count) {
        for (int i = 0; i < count; i++)
            value = value * 6364136223846793005u + 1442695040888963407u;
    }

    FUNCTION void divide(int count) {
        for (int i = 1; i <= count; i++)
            value += (value | 1) / (uint64_t)(i * 7);
    }

    FUNCTION void look_up(int count, int more) {
        uint64_t at = value;
        for (int i = 0; i < count + more; i++) {
            at = table[at % table.size()] + (at >> 9);
            if (i == count - 1)
                value = at;
        }
        /* What comes next waits for that, and gets the same. */
        unused = at;
        value += unused - at;
    }

    FUNCTION void measure(int count) {
        for (int i = 0; i < count; i++)
            value += shapes[value >> 40 & 1]->area(value);
    }

    FUNCTION void join_text(int count) {
        std::string text;
        for (int i = 0; i < count; i++)
            text += std::to_string(value + i) + ",";
        value += text.size();
    }

    FUNCTION void count_words(int count) {
        for (int i = 0; i < count; i++)
            value += ++counts[value >> (i % 32) & 255];
    }

    FUNCTION void sort_some(int count) {
        std::vector<uint32_t> numbers(48);
        for (int i = 0; i < count; i++) {
            std::generate(numbers.begin(), numbers.end(), [this] {
                return (uint32_t)((value = value * 6364136223846793005u + 1) >> 33);
            });
            std::sort(numbers.begin(), numbers.end());
            value += numbers[7];
        }
    }

    FUNCTION void add_up(int count) {
        double sum = (double)(value % 1000);
        for (int i = 1; i < count; i++)
            sum += 1.0 / (double)i;
        value += (uint64_t)sum;
    }
};

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    int rounds = atoi(argv[1]), more = atoi(argv[2]);
    Numbers numbers;
    for (int round = 0; round < rounds; round++) {
        numbers.multiply(3000);
        numbers.divide(400);
        numbers.look_up(1000, 10 * more);
        numbers.measure(800);
        numbers.join_text(30);
        numbers.count_words(60);
        numbers.sort_some(3);
        numbers.add_up(900);
    }
    printf("%llu\n", (unsigned long long)numbers.value);
}
