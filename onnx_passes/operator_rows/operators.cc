#include "onnx_passes/operators/operators.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/shape_contract.h"

namespace onnx_train {

#define ONNX_TRAIN_FAMILY(name) std::vector<Operator> name##_operators();
#include "onnx_passes/operator_rows/families.def"

namespace {

struct ParsedRow {
  Operator row;
  ShapeContract contract;
};

// By name; few names are in two domains.
using Table = std::unordered_map<std::string_view, std::vector<ParsedRow>>;

const ParsedRow* find_row(const Table& table, std::string_view domain, std::string_view op) {
  const auto rows = table.find(op);
  if (rows == table.end()) return nullptr;
  for (const ParsedRow& row : rows->second) {
    if (domain == row.row.domain) return &row;
  }
  return nullptr;
}

void add(Table* rows, const Operator& row) {
  if (!find_row(*rows, row.domain, row.op)) (*rows)[row.op].push_back({row, ShapeContract(row.shapes)});
}

const Table& table() {
  static const Table all = [] {
    Table rows;
    std::vector<Operator> narrow;  // functions in our domain with the names of ONNX's operators
    using Family = std::vector<Operator> (*)();
    for (const Family family : std::initializer_list<Family>{
#define ONNX_TRAIN_FAMILY(name) name##_operators,
#include "onnx_passes/operator_rows/families.def"
         }) {
      for (Operator& row : family()) {
        add(&rows, row);
        if (*row.domain || (row.narrow_inputs.empty() && row.narrow_outputs.empty())) continue;
        row.domain = kDomain;
        row.types = ElementTypes::kOneFloat;
        row.precision = PrecisionRole::kFloat32;
        row.weights.clear();
        narrow.push_back(row);
      }
    }
    for (const Operator& row : narrow) add(&rows, row);
    return rows;
  }();
  return all;
}

const ParsedRow* find_row(std::string_view domain, std::string_view op) { return find_row(table(), domain, op); }

template <typename T>
Operator with(Operator row, T Operator::*fact, T value) {
  row.*fact = std::move(value);
  return row;
}

}  // namespace

const Operator* find_operator(std::string_view domain, std::string_view op) {
  const ParsedRow* row = find_row(domain, op);
  return row ? &row->row : nullptr;
}

const std::vector<const Operator*>& operator_rows() {
  static const std::vector<const Operator*> all = [] {
    std::vector<const Operator*> rows;
    for (const auto& [op, of_name] : table()) {
      for (const ParsedRow& row : of_name) rows.push_back(&row.row);
    }
    return rows;
  }();
  return all;
}

Operator Operator::narrow(std::vector<int> inputs, std::vector<int> outputs) const {
  return with(with(*this, &Operator::narrow_inputs, std::move(inputs)), &Operator::narrow_outputs, std::move(outputs));
}

Operator Operator::in_precision(PrecisionRole role) const { return with(*this, &Operator::precision, role); }

Operator Operator::weights_at(std::vector<int> inputs) const {
  return with(*this, &Operator::weights, std::move(inputs));
}

Operator Operator::of_kind(OperatorKind of) const { return with(*this, &Operator::kind, of); }

Operator Operator::selecting(InputRange from) const { return with(*this, &Operator::selects, from); }

Operator Operator::with_settings(InputRange at) const { return with(*this, &Operator::settings, at); }

Operator Operator::sized_by_inputs(std::vector<int> inputs) const {
  return with(*this, &Operator::sized_by, std::move(inputs));
}

Operator Operator::meeting_after(int input) const { return with(*this, &Operator::after, input); }

Operator Operator::with_epilogue(Epilogue possible) const { return with(*this, &Operator::steps, std::move(possible)); }

Operator Operator::shared_along(const char* along, const char* sums) const {
  return with(with(*this, &Operator::each, along), &Operator::summed, sums);
}

Operator Operator::counting(double (*function)(const Node& node)) const {
  return with(*this, &Operator::multiply_adds, function);
}

Operator Operator::moving(Traffic what) const { return with(*this, &Operator::traffic, what); }

Operator Operator::on_images(ImageRole role, std::vector<int> inputs, std::vector<int> outputs) const {
  Operator row = with(*this, &Operator::image_role, role);
  return with(with(row, &Operator::image_inputs, std::move(inputs)), &Operator::image_outputs, std::move(outputs));
}

const Operator& operator_of(const Node& node) {
  static const Operator unknown{"", "", ""};
  const Operator* row = find_operator(node.domain(), node.op());
  return row ? *row : unknown;
}

bool is_view(const Node& node) { return operator_of(node).kind == OperatorKind::kView; }
bool is_elementwise(const Node& node) { return operator_of(node).kind == OperatorKind::kElementwise; }

bool is_reduction(const Node& node) { return operator_of(node).kind == OperatorKind::kReduction; }
bool reads_shape_only(const Node& node) { return operator_of(node).traffic == Traffic::kNone; }

bool moves_elements(const Node& node) {
  const OperatorKind kind = operator_of(node).kind;
  return kind == OperatorKind::kView || kind == OperatorKind::kRearrangement || kind == OperatorKind::kExtraction ||
         node.is("Cast") || node.is("CastLike");
}

const ShapeContract* find_contract(std::string_view domain, std::string_view op) {
  const ParsedRow* row = find_row(domain, op);
  return row ? &row->contract : nullptr;
}

int place_of_input(std::string_view domain, std::string_view op, std::string_view name) {
  const ShapeContract* contract = find_contract(domain, op);
  return contract ? contract->input(name) : -1;
}

namespace {

// Whether no step reads, or writes, the value of this name, or the node's epilogue has such a step: of two names of a
// place the epilogue says which is meant.
bool is_meant(const Node& node, const char* EpilogueStepRow::*value, std::string_view name) {
  const auto has_value = [&](EpilogueStep step) { return row_of(step).*value && name == row_of(step).*value; };
  const Epilogue& possible = operator_of(node).steps;
  if (std::none_of(possible.begin(), possible.end(), has_value)) return true;
  const Epilogue steps = epilogue_of(node);
  return std::any_of(steps.begin(), steps.end(), has_value);
}

}  // namespace

int input_at(const Node& node, std::string_view name) {
  const int place = place_of_input(node.domain(), node.op(), name);
  return place >= 0 && node.input(place) && is_meant(node, &EpilogueStepRow::reads, name) ? place : -1;
}

int output_at(const Node& node, std::string_view name) {
  const ShapeContract* contract = find_contract(node.domain(), node.op());
  const int place = contract ? contract->output(name) : -1;
  return place >= 0 && node.output(place) && is_meant(node, &EpilogueStepRow::writes, name) ? place : -1;
}

void check_shapes(const Node& node) {
  const ParsedRow* row = find_row(node.domain(), node.op());
  if (!row) return;
  row->contract.check(node, row->row);
  if (!row->row.steps.empty()) check_epilogue(node, row->row.steps);
  if (row->row.check) row->row.check(node);
}

}  // namespace onnx_train
