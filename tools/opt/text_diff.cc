#include "tools/opt/text_diff.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

using Lines = std::vector<std::string_view>;

Lines lines_of(const std::string& text) {
  Lines lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

constexpr size_t kNone = SIZE_MAX;

// For each line of `a` the equal line of `b` that it is matched with, or kNone; in ascending order.
class LineMatches {
 public:
  LineMatches(const Lines& a, const Lines& b) : a_(a), b_(b), match_(a.size(), kNone) {
    ranges_.push_back({0, a.size(), 0, b.size()});
    while (!ranges_.empty()) {
      const Range range = ranges_.back();
      ranges_.pop_back();
      match(range);
    }
  }
  const std::vector<size_t>& found() const { return match_; }

 private:
  struct Range {
    size_t a, a_end, b, b_end;
  };
  using Pairs = std::vector<std::pair<size_t, size_t>>;

  void match(Range r) {
    for (; r.a < r.a_end && r.b < r.b_end && a_[r.a] == b_[r.b]; ++r.a, ++r.b) match_[r.a] = r.b;
    for (; r.a < r.a_end && r.b < r.b_end && a_[r.a_end - 1] == b_[r.b_end - 1]; --r.a_end, --r.b_end)
      match_[r.a_end - 1] = r.b_end - 1;
    if (r.a == r.a_end || r.b == r.b_end) return;
    const Pairs anchors = ascending(unique_lines(r));
    if (anchors.empty()) return match_some(r);
    Range before = r;
    for (const auto& [a, b] : anchors) {
      match_[a] = b;
      ranges_.push_back({before.a, a, before.b, b});
      before.a = a + 1;
      before.b = b + 1;
    }
    ranges_.push_back(before);
  }

  // Pairs of lines that both have once, in the order of `a`.
  Pairs unique_lines(const Range& r) const {
    struct Places {
      size_t in_a = 0, in_b = 0, b = 0;
    };
    std::unordered_map<std::string_view, Places> places;
    for (size_t i = r.a; i < r.a_end; ++i) ++places[a_[i]].in_a;
    for (size_t j = r.b; j < r.b_end; ++j) {
      Places& line = places[b_[j]];
      ++line.in_b;
      line.b = j;
    }
    Pairs pairs;
    for (size_t i = r.a; i < r.a_end; ++i) {
      const Places& line = places[a_[i]];
      if (line.in_a == 1 && line.in_b == 1) pairs.emplace_back(i, line.b);
    }
    return pairs;
  }

  // The longest part of `pairs` whose second places ascend, too.
  static Pairs ascending(const Pairs& pairs) {
    std::vector<size_t> ends, previous(pairs.size(), kNone);  // of the best part of each length; the pair before each
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto at = std::lower_bound(ends.begin(), ends.end(), pairs[i].second,
                                       [&](size_t end, size_t place) { return pairs[end].second < place; });
      if (at != ends.begin()) previous[i] = *(at - 1);
      at == ends.end() ? ends.push_back(i) : void(*at = i);
    }
    Pairs part;
    for (size_t i = ends.empty() ? kNone : ends.back(); i != kNone; i = previous[i]) part.push_back(pairs[i]);
    std::reverse(part.begin(), part.end());
    return part;
  }

  // Without unique lines: equal ones in their order, the next best.
  void match_some(const Range& r) {
    std::unordered_map<std::string_view, std::vector<size_t>> places;
    for (size_t j = r.b; j < r.b_end; ++j) places[b_[j]].push_back(j);
    size_t from = r.b;
    for (size_t i = r.a; i < r.a_end; ++i) {
      const auto found = places.find(a_[i]);
      if (found == places.end()) continue;
      const auto next = std::lower_bound(found->second.begin(), found->second.end(), from);
      if (next == found->second.end()) continue;
      match_[i] = *next;
      from = *next + 1;
    }
  }

  const Lines &a_, &b_;
  std::vector<size_t> match_;
  std::vector<Range> ranges_;
};

}  // namespace

std::vector<DiffLine> diff_lines(const std::string& before, const std::string& after, size_t context) {
  if (before == after) return {};
  const Lines a = lines_of(before), b = lines_of(after);
  const LineMatches matches(a, b);
  std::vector<DiffLine> all;
  size_t j = 0;
  const auto add_until = [&](size_t end) {
    for (; j < end; ++j) all.push_back({'+', std::string(b[j])});
  };
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t match = matches.found()[i];
    if (match == kNone) {
      all.push_back({'-', std::string(a[i])});
      continue;
    }
    add_until(match);
    all.push_back({' ', std::string(a[i])});
    ++j;
  }
  add_until(b.size());

  std::vector<DiffLine> shown;
  std::vector<bool> is_near(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].kind == ' ') continue;
    for (size_t k = i - std::min(i, context); k < std::min(all.size(), i + context + 1); ++k) is_near[k] = true;
  }
  size_t line = 1;  // of the second text
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_near[i] && (i == 0 || !is_near[i - 1])) shown.push_back({'@', concat("line ", line)});
    if (is_near[i]) shown.push_back(all[i]);
    line += all[i].kind != '-';
  }
  return shown;
}

}  // namespace onnx_train
