#include "tools/report/parameter_table.h"

#include <algorithm>
#include <map>

#include "onnx_passes/ir/error.h"
#include "runtime/support/report_text.h"

namespace onnx_train {
namespace {

constexpr size_t kMaxRows = 12;

// Parameters whose names begin alike.
struct Module {
  std::string prefix;  // "encoder.layers.", with its last separator; a whole name for a parameter alone
  std::string parent;  // the prefix of the module that it is a part of
  std::vector<const ParameterRow*> members;
  bool has_parts = true;  // false for those of the parent that are in none of its other parts

  bool can_open() const { return has_parts && members.size() > 1; }
  double elements() const {
    double sum = 0;
    for (const ParameterRow* p : members) sum += p->elements;
    return sum;
  }
};

// The parts of a module, in the order of their first members. Many parameters that are in no part of it are one:
// exporters give names such as val_15 to what they fold.
std::vector<Module> parts_of(const Module& module) {
  constexpr size_t kFew = 4;
  const auto end_of = [&](const ParameterRow& p) {
    const size_t end = p.name.find_first_of("./", std::max<size_t>(module.prefix.size(), 1));
    return end == std::string::npos ? p.name.size() : end + 1;
  };
  const auto is_alone = [&](const ParameterRow* p) { return end_of(*p) == p->name.size(); };
  const auto alone = static_cast<size_t>(std::count_if(module.members.begin(), module.members.end(), is_alone));
  const bool merges = alone > kFew && alone < module.members.size();
  std::vector<Module> parts;
  std::map<std::string, size_t> index;
  for (const ParameterRow* p : module.members) {
    const bool merged = merges && is_alone(p);
    const std::string prefix = merged ? module.prefix : p->name.substr(0, end_of(*p));
    const auto [found, is_new] = index.emplace(prefix, parts.size());
    if (is_new) parts.push_back({prefix, module.prefix, {}, !merged});
    parts[found->second].members.push_back(p);
  }
  return parts;
}

// The parts of one module, and what there is in the place of them when they are opened.
struct Opening {
  double elements = 0;
  size_t closed = 0, opened = 0;  // rows
};

// Opens modules, those with most elements first, as long as there are at most kMaxRows. All parts of a module are
// opened or none, so that layers look alike.
std::vector<Module> modules_of(const std::vector<ParameterRow>& parameters) {
  std::vector<Module> rows(1);
  for (const ParameterRow& p : parameters) rows[0].members.push_back(&p);
  for (;;) {
    std::map<std::string, Opening> openings;
    for (const Module& row : rows) {
      if (!row.can_open()) continue;
      Opening& opening = openings[row.parent];
      opening.elements += row.elements();
      opening.closed += 1;
      opening.opened += parts_of(row).size();
    }
    std::erase_if(openings, [&](const auto& o) { return rows.size() - o.second.closed + o.second.opened > kMaxRows; });
    const auto largest = std::max_element(openings.begin(), openings.end(), [](const auto& a, const auto& b) {
      return a.second.elements < b.second.elements;
    });
    if (largest == openings.end()) return rows;
    std::vector<Module> opened;
    for (const Module& row : rows) {
      const bool opens = row.can_open() && row.parent == largest->first;
      const std::vector<Module> parts = opens ? parts_of(row) : std::vector<Module>{row};
      opened.insert(opened.end(), parts.begin(), parts.end());
    }
    rows = std::move(opened);
  }
}

// What all members have, or how they differ.
template <typename Get>
std::string common(const Module& module, const Get& get) {
  std::vector<std::string> values;
  for (const ParameterRow* p : module.members) {
    if (std::find(values.begin(), values.end(), get(*p)) == values.end()) values.push_back(get(*p));
  }
  if (values.size() == 1) return values[0];
  std::erase(values, "");
  return values.size() == 1 ? "some " + values[0] : "several";
}

std::vector<std::string> row_of(const Module& module) {
  const ParameterRow& first = *module.members[0];
  const bool is_alone = module.members.size() == 1;
  const std::string name = !module.has_parts       ? module.prefix + "(others)"
                           : module.prefix.empty() ? "all"
                                                   : module.prefix + "*";
  return {is_alone ? first.name : name,
          is_alone ? first.shape : concat(module.members.size(), " tensors"),
          format_count(module.elements()),
          common(module, [](const ParameterRow& p) { return p.dtype; }),
          common(module, [](const ParameterRow& p) { return p.decay; }),
          common(module, [](const ParameterRow& p) { return p.state; })};
}

}  // namespace

std::string parameter_table(const std::vector<ParameterRow>& parameters, size_t width) {
  TextTable table("wwrlrw");
  table.add({"parameter", "shape", "elements", "type", "decay", "state"});
  if (parameters.size() <= kMaxRows) {
    for (const ParameterRow& p : parameters) table.add(row_of({p.name, "", {&p}, true}));
  } else {
    for (const Module& module : modules_of(parameters)) table.add(row_of(module));
  }
  return table.text(2, width);
}

}  // namespace onnx_train
