#include <algorithm>
#include <boost/coroutine2/all.hpp>
#include <cstdlib>
#include <vector>

using Numbers = boost::coroutines2::coroutine<int>;
static volatile int sum;

__attribute__((noinline)) static int descend(int level) {
    std::vector<int> list(20);
    std::generate(list.begin(), list.end(), rand);
    std::sort(list.begin(), list.end());
    return level ? descend(level - 1) + list[1] : list[0];
}

int main() {
    for (;;) {
        Numbers::pull_type numbers([](Numbers::push_type &give) {
            for (int level = 0; level < 10; level++) give(descend(level));
        });
        for (int number : numbers) sum = sum ^ number ^ descend(2);
    }
}
