// docs/operators.md says what the program's tables say. To write it anew:
//   UPDATE_GOLDEN=1 build/tests/unit_tests --gtest_filter='OperatorTable.*'
#include "runtime/models/operator_table.h"

#include <gmock/gmock.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <map>
#include <span>

#include "kernels/cuda/support/device.h"
#include "kernels/host.h"
#include "kernels/registry.h"
#include "onnx_passes/foreign/foreign.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/gradients/without_gradient.h"
#include "onnx_passes/ir/error.h"
#include "tests/op_cases/make_case.h"
#include "tests/support/golden.h"

namespace onnx_train::operator_table_test {
namespace {

using testing::AllOf;
using testing::Field;
using testing::UnorderedElementsAre;

constexpr DType kFloats[] = {DType::kFloat, DType::kDouble};
constexpr DType kHalves[] = {DType::kFloat16, DType::kBFloat16};
constexpr DType kIntegers[] = {DType::kInt8,  DType::kInt16,  DType::kInt32,  DType::kInt64,
                               DType::kUint8, DType::kUint16, DType::kUint32, DType::kUint64};
constexpr DType kBools[] = {DType::kBool};

// The input whose type says what an operator computes in: the first one of the output's type, if there is any.
const onnx::OpSchema::FormalParameter* typical_input(const onnx::OpSchema& schema) {
  if (schema.inputs().empty() || schema.outputs().empty()) return nullptr;
  for (const auto& input : schema.inputs()) {
    if (input.GetTypeStr() == schema.outputs()[0].GetTypeStr()) return &input;
  }
  return &schema.inputs()[0];
}

// Whether a kernel supports the row's node when the inputs of the typical input's type have another one. Where that is
// float64, all floats are.
bool takes(const Device& device, OpCase row, DType dtype) {
  const onnx::OpSchema* schema = onnx::OpSchemaRegistry::Schema(row.op, static_cast<int>(row.opset), "");
  const auto* varied = schema ? typical_input(*schema) : nullptr;
  if (!varied) return false;
  const auto& formals = schema->inputs();
  const auto& allowed = varied->GetTypes();
  const std::string wanted = concat("tensor(", name(dtype), ")");
  if (std::none_of(allowed.begin(), allowed.end(), [&](const std::string* type) { return *type == wanted; }))
    return false;
  try {
    std::vector<Tensor> inputs = draw_inputs(row);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (row.inputs[i].absent) continue;
      const std::string& type = formals[std::min(i, formals.size() - 1)].GetTypeStr();
      const bool is_free_float = is_float(inputs[i].dtype()) && type.find("tensor(") == std::string::npos;
      if (type != varied->GetTypeStr() && !(dtype == DType::kDouble && is_free_float)) continue;
      inputs[i] = inputs[i].cast(dtype);
      row.inputs[i].single = true;
    }
    const Case made = make_case(row, inputs, DType::kFloat, /*dynamic=*/false);
    const Node& node = *made.outputs.at(0)->producer();
    std::vector<Tensor> constants;
    for (size_t i = 0; i < inputs.size(); ++i) constants.push_back(row.inputs[i].constant ? inputs[i] : Tensor());
    for (const Value* output : node.outputs()) {
      if (output && !output->type().is_static()) return false;
    }
    return find_kernel(device, NodeSpec(node, constants, num_threads())) != nullptr;
  } catch (const Error&) {
    return false;
  }
}

// The types of an operator's typical input that a kernel of the device takes, from the nodes of tests/op_cases.
std::string kernel_types(const Device& device, const std::string& op) {
  constexpr size_t kMostRows = 8;
  static const auto rows_of = [] {
    std::map<std::string, std::vector<OpCase>> rows;
    for (const OpCase& row : all_cases()) {
      if (row.domain.empty() && rows[row.op].size() < kMostRows) rows[row.op].push_back(row);
    }
    return rows;
  }();
  const auto rows = rows_of.find(op);
  if (rows == rows_of.end()) return "";
  std::string text;
  const auto add = [&](const char* all, std::span<const DType> types) {
    std::string some;
    size_t count = 0;
    for (const DType dtype : types) {
      if (std::none_of(rows->second.begin(), rows->second.end(),
                       [&](const OpCase& row) { return takes(device, row, dtype); }))
        continue;
      some += concat(count++ > 0 ? ", " : "", name(dtype));
    }
    if (count > 0) text += concat(text.empty() ? "" : ", ", count == types.size() ? all : some);
  };
  add("floats", kFloats);
  add("16-bit floats", kHalves);
  add("integers", kIntegers);
  add("bool", kBools);
  return text;
}

TEST(OperatorTable, IsThatOfTheDocumentation) {
  expect_reference("operators.md", operator_page({&Device::cpu(), &cuda_device()}, kernel_types));
}

TEST(OperatorTable, EveryOperatorWithoutAGradientHasAReason) {
  for (const OperatorEntry& entry : operator_table({&Device::cpu()})) {
    EXPECT_NE(entry.gradient, "missing") << entry.name() << " needs a row in without_gradient.cc";
    EXPECT_NE(entry.gradient, "none: ") << entry.name() << " is refused without a reason";
  }
}

// A rule that somebody adds makes the row that says that there is none wrong.
TEST(OperatorTable, NoReasonIsLeftOfWhatIsThere) {
  for (const WithoutGradient& row : without_gradient_rows()) {
    const auto found = operator_table({}, row.op);
    ASSERT_EQ(found.size(), row.op == std::string("Attention") ? 2u : 1u) << row.op;
    const bool has = found[0].gradient == "rule" || found[0].gradient == "function body" || found[0].gradient == "zero";
    EXPECT_EQ(has, row.what == Without::kSecondOrder) << row.op << ": delete its row in without_gradient.cc";
  }
}

TEST(OperatorTable, FindsOperatorsByPattern) {
  const auto names = [](const std::string& pattern) {
    std::vector<std::string> found;
    for (const OperatorEntry& entry : operator_table({}, pattern)) found.push_back(entry.name());
    return found;
  };
  EXPECT_THAT(names("ReduceM*"), UnorderedElementsAre("ReduceMax", "ReduceMean", "ReduceMin"));
  EXPECT_THAT(names("com.microsoft.Fused*"),
              UnorderedElementsAre("com.microsoft.FusedConv", "com.microsoft.FusedGemm", "com.microsoft.FusedMatMul"));
  EXPECT_THAT(names("Nonsense"), UnorderedElementsAre());
}

TEST(OperatorTable, TellsRulesFromBodiesAndZeros) {
  const auto gradient = [](const std::string& op) { return operator_table({}, op).at(0).gradient; };
  EXPECT_EQ(gradient("Conv"), "rule");
  EXPECT_EQ(gradient("AffineGrid"), "function body");
  EXPECT_EQ(gradient("Floor"), "zero");
  EXPECT_EQ(gradient("NonMaxSuppression"), "none: its outputs are no floats");
  EXPECT_EQ(gradient("ZipMap"), "none: it reads or writes strings or maps, which are no tensors of numbers");
}

}  // namespace
}  // namespace onnx_train::operator_table_test
