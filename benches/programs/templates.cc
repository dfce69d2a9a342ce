// Headers and templates that keep a compiler busy.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

template <int N> struct Level {
    std::map<std::string, std::vector<std::tuple<int, double, std::string>>> table;
    std::unordered_map<int, std::shared_ptr<Level<N - 1>>> lower;
    std::variant<int, std::string, std::vector<Level<N - 1>>> any;
    auto sorted() {
        std::vector<std::pair<std::string, int>> all;
        for (auto &[key, rows] : table)
            for (auto &[number, weight, name] : rows)
                all.emplace_back(key + name, number * static_cast<int>(weight) + N);
        std::sort(all.begin(), all.end(), [](auto &a, auto &b) { return a.second < b.second + N; });
        std::stable_sort(all.begin(), all.end());
        return all;
    }
    int deep() {
        int sum = std::visit([](auto &value) -> int { return sizeof value; }, any);
        for (auto &[key, level] : lower)
            sum += key + level->deep() + static_cast<int>(level->sorted().size());
        return sum;
    }
};
template <> struct Level<0> {
    int deep() { return 1; }
    std::vector<int> sorted() { return {}; }
};

int main() {
    Level<12> top;
    std::regex word("([a-z]+)-([0-9]+)");
    std::smatch match;
    std::string text = "abc-12";
    std::regex_match(text, match, word);
    std::function<int(int)> twice = [](int x) { return 2 * x; };
    std::cout << top.deep() + twice(static_cast<int>(match.size())) << top.sorted().size() << "\n";
}
