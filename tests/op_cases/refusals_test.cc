// Which kernels throw for what their inputs hold: those whose rows say so, and no others. Passes that place updates of
// the state rely on it.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kernels/device.h"
#include "kernels/host.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "tests/op_cases/make_case.h"

namespace onnx_train::refusals_test {
namespace {

std::string name_of(const Kernel& kernel) { return concat(kernel.domain, ".", kernel.op); }

// A row's node on its kernel, prepared for the inputs that are drawn for the row.
class Probe {
 public:
  explicit Probe(const OpCase& row) : row_(row), inputs_(draw_inputs(row)) {
    made_ = make_case(row, inputs_, DType::kFloat, false);
    std::vector<Tensor> constants;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!row.inputs[i].absent) inputs_[i] = inputs_[i].cast(type_in(row.inputs[i], inputs_[i], DType::kFloat));
      constants.push_back(row.inputs[i].constant ? inputs_[i] : Tensor());
    }
    for (const Value* output : made_.outputs) {
      if (!output || !output->type().is_static()) return;
      outputs_.emplace_back(output->dtype(), output->type().shape());
    }
    const NodeSpec spec(*made_.outputs[0]->producer(), std::move(constants), num_threads());
    kernel_ = find_kernel(Device::cpu(), spec);
    if (kernel_) prepared_ = kernel_->prepare(spec);
  }

  const Kernel* kernel() const { return kernel_; }  // null when there is none

  // Inputs that no preparation has seen: integers, and floats, in which MaxRoiPool has indices. Empty ones have none to
  // spoil.
  std::vector<size_t> indices() const {
    std::vector<size_t> result;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const bool is_given = !row_.inputs[i].absent && !row_.inputs[i].constant && inputs_[i].size() > 0;
      const DType dtype = is_given ? inputs_[i].dtype() : DType::kUndefined;
      if (dtype == DType::kInt64 || dtype == DType::kInt32 || dtype == DType::kFloat) result.push_back(i);
    }
    return result;
  }

  // Whether the kernel reports a fault when the elements of input `i` are `value`.
  bool refuses(size_t i, double value) {
    std::vector<Tensor> given = inputs_;
    given[i] = inputs_[i].clone();
    for (int64_t k = 0; k < given[i].size(); ++k) given[i].set(k, value);
    std::vector<const void*> in;
    std::vector<void*> out;
    for (const Tensor& tensor : given) in.push_back(tensor.data());
    for (Tensor& tensor : outputs_) out.push_back(tensor.data());
    Tensor workspace(DType::kInt8, {static_cast<int64_t>(prepared_.workspace)});
    Fault fault;
    prepared_.run({in.data(), out.data(), workspace.data(), nullptr, &fault, 1});
    EXPECT_TRUE(fault.node == 0 || (fault.input == static_cast<int>(i) && prepared_.explain)) << name_of(*kernel_);
    return fault.node != 0;
  }

 private:
  const OpCase& row_;
  std::vector<Tensor> inputs_, outputs_;
  Case made_;
  const Kernel* kernel_ = nullptr;
  Prepared prepared_;
};

TEST(Refusals, KernelsThatReportFaultsSaySo) {
  std::set<std::string> refuse;
  for (const OpCase& row : all_cases()) {
    Probe probe(row);
    if (!probe.kernel()) continue;
    for (size_t i : probe.indices()) {
      for (double value : {1e9, -1e9}) {
        if (!probe.refuses(i, value)) continue;
        refuse.insert(name_of(*probe.kernel()));
        EXPECT_NE(probe.kernel()->input_check, InputCheck::kNone)
            << name_of(*probe.kernel()) << " refuses input " << i << " with " << value << ", its row says nothing";
      }
    }
  }
  EXPECT_GE(refuse.size(), 10u);
  for (const Kernel* kernel : Device::cpu().kernels()) {
    if (kernel->input_check == InputCheck::kNone) continue;
    EXPECT_TRUE(refuse.count(name_of(*kernel))) << name_of(*kernel) << " is said to refuse data, and does not";
  }
}

// Rows of the same name support different types: ONNX's operator, and ours with narrow operands.
TEST(Refusals, RowsOfOneNameRefuseTheSame) {
  std::map<std::string, InputCheck> checks;
  for (const Kernel* kernel : Device::cpu().kernels()) {
    const auto [known, added] = checks.emplace(kernel->op, kernel->input_check);
    EXPECT_EQ(kernel->input_check, known->second) << kernel->op;
  }
}

TEST(Refusals, OnlyFunctionsOfOursRefuseWhatWasRefusedBefore) {
  for (const Kernel* kernel : Device::cpu().kernels()) {
    EXPECT_TRUE(kernel->input_check != InputCheck::kCheckedUpstream || std::string(kernel->domain) == kDomain)
        << kernel->op;
  }
}

}  // namespace
}  // namespace onnx_train::refusals_test
