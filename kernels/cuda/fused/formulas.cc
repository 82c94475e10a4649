#include "kernels/cuda/fused/formulas.h"

#include <cxxabi.h>

#include <functional>
#include <map>
#include <memory>
#include <typeinfo>
#include <utility>

#include "kernels/cuda/support/stored.h"
#include "kernels/elementwise.h"
#include "kernels/reductions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

using Operands = std::vector<std::string>;
using Write = std::function<std::string(const Node&, const Operands&)>;

struct Formula {
  std::function<bool(const Node&)> supports;
  Write write;
};
using Formulas = std::map<std::pair<std::string, std::string>, Formula>;  // by domain and operator

template <typename F>
std::string name_of() {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(typeid(F).name(), nullptr, nullptr, &status),
                                                    std::free);
  if (status != 0) fail("a functor without a name: ", typeid(F).name());
  return name.get();
}

template <typename F>
std::string functor_text(const F& f) {
  if constexpr (std::is_empty_v<F>) {
    return name_of<F>() + "{}";
  } else {
    return constant_text(name_of<F>(), &f, sizeof f);
  }
}

std::string joined(const Operands& operands) {
  std::string text;
  for (size_t i = 0; i < operands.size(); ++i) text += (i ? ", " : "") + operands[i];
  return text;
}

std::string call(const std::string& function, const Operands& operands) {
  return concat(function, "(", joined(operands), ")");
}

bool has_input(const Node& node, int i) { return i < node.num_inputs() && node.input(i); }

// The sink that writes the operators' formulas.
class TextSink {
 public:
  Formulas formulas;

  template <typename Types, typename Formula>
  void unary(const char* op, Types types, Formula formula, const char* domain = "") {
    of_one_type(op, domain, types, formula);
  }
  template <typename Types, typename Formula>
  void binary(const char* op, Types types, Formula formula, const char* domain = "") {
    of_one_type(op, domain, types, formula);
  }

  template <typename Types, typename F>
  void variadic(const char* op, Types types, F f, Combination combination) {
    add(op, "", one_type(types), [=](const Node& node, const Operands& operands) {
      const std::string type = element_type(node.input(0)->dtype());
      const std::string text = concat("fold<", type, ">(", functor_text(f), ", {", joined(operands), "})");
      if (combination == Combination::kWhole) return text;
      return types.dispatch(node.input(0)->dtype(), [&]<typename T>(T) -> std::string {
        if constexpr (std::is_floating_point_v<T>) {
          return call(functor_text(math::Scale<T>{T{1} / static_cast<T>(operands.size())}), {text});
        }
        fail(node.label(), ": a mean of integers");
      });
    });
  }

  void power(const char* op) {
    const auto supports = [](const Node& node) {
      return PowerBases{}.contains(node.input(0)->dtype()) && PowerBases{}.contains(node.input(1)->dtype());
    };
    add(op, "", supports, [](const Node& node, const Operands& operands) {
      const std::string type = element_type(node.input(0)->dtype());
      return call("power<" + type + ">", operands);
    });
  }

  void clip(const char* op) {
    add(op, "", one_type(Numbers{}), [](const Node& node, const Operands& operands) {
      std::string text = "clip<" + element_type(node.input(0)->dtype()) + ", ";
      text += has_input(node, 1) ? "true, " : "false, ";
      text += has_input(node, 2) ? "true>" : "false>";
      Operands all = {operands[0]};
      for (size_t i = 1; i < 3; ++i) all.push_back(i < operands.size() && !operands[i].empty() ? operands[i] : "{}");
      return call(text, all);
    });
  }

  void dropout_gradient(const char* op, const char* domain) {
    const auto supports = [](const Node& node) {
      return is_float_or_double(node.input(0)->dtype()) && node.input(1)->dtype() == DType::kBool &&
             is_float_or_double(node.input(2)->dtype());
    };
    add(op, domain, supports, [](const Node& node, const Operands& operands) {
      const std::string type = "onnx_train::math::DropoutGrad<" + element_type(node.input(0)->dtype()) + ">";
      return call(call(type + "::of_ratio", {operands[2]}), {operands[0], operands[1]});
    });
  }

  void choose(const char* op) {
    add(
        op, "", [](const Node&) { return true; },
        [](const Node&, const Operands& o) { return concat("(", o[0], " ? ", o[1], " : ", o[2], ")"); });
  }

  void cast(const char* op) {
    add(
        op, "", [](const Node&) { return true; },
        [](const Node& node, const Operands& operands) {
          return call("onnx_train::math::convert<" + element_type(node.output()->dtype()) + ">", {operands[0]});
        });
  }

 private:
  template <typename Types>
  static std::function<bool(const Node&)> one_type(Types types) {
    return [types](const Node& node) {
      const DType dtype = node.input(0)->dtype();
      for (const Value* input : node.inputs()) {
        if (input && input->dtype() != dtype) return false;
      }
      return types.contains(dtype);
    };
  }

  template <typename Types, typename Formula>
  void of_one_type(const char* op, const char* domain, Types types, Formula formula) {
    add(op, domain, one_type(types), [=](const Node& node, const Operands& operands) {
      return types.dispatch(node.input(0)->dtype(), [&](auto zero) {
        return formula(node, zero, [&](auto f) { return call(functor_text(f), operands); });
      });
    });
  }

  void add(const char* op, const char* domain, std::function<bool(const Node&)> supports, Write write) {
    formulas.emplace(std::pair(domain, op), Formula{std::move(supports), std::move(write)});
  }
};

const Formulas& all_formulas() {
  static const Formulas all = [] {
    TextSink sink;
    for_each_arithmetic_operator(sink);
    for_each_bound_operator(sink);
    for_each_power_operator(sink);
    for_each_function_of_floats(sink);
    for_each_activation(sink);
    for_each_activation_gradient(sink);
    for_each_comparison(sink);
    for_each_logic_operator(sink);
    for_each_cast(sink);
    return sink.formulas;
  }();
  return all;
}

const Formula* find_formula(const Node& node) {
  const auto found = all_formulas().find({node.domain(), node.op()});
  return found == all_formulas().end() ? nullptr : &found->second;
}

// The sink that names the operations of reductions.
struct ReducerNames {
  std::map<std::string, std::string> of;

  template <template <typename, typename...> typename Op, typename Types, typename InRegions>
  void add(const char* op, Types, InRegions) {
    if constexpr (InRegions::value) {
      const std::string name = name_of<Op<float>>();
      of.emplace(op, name.substr(0, name.find('<')));
    }
  }
};

}  // namespace

std::string element_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat: return "float";
    case DType::kDouble: return "double";
    case DType::kInt8: return "int8_t";
    case DType::kUint8: return "uint8_t";
    case DType::kInt16: return "int16_t";
    case DType::kUint16: return "uint16_t";
    case DType::kInt32: return "int32_t";
    case DType::kUint32: return "uint32_t";
    case DType::kInt64: return "int64_t";
    case DType::kUint64: return "uint64_t";
    case DType::kBool: return "bool";
    case DType::kBFloat16: return "onnx_train::BFloat16";
    case DType::kFloat16: return "onnx_train::Float16";
    default: return "";
  }
}

std::string constant_text(const std::string& type, const void* value, size_t bytes) {
  std::string text = "from_bytes<" + type + ">({";
  for (size_t i = 0; i < bytes; ++i) {
    text += (i ? "," : "") + std::to_string(static_cast<const unsigned char*>(value)[i]);
  }
  return text + "})";
}

std::vector<ElementwiseOperator> elementwise_operators() {
  std::vector<ElementwiseOperator> operators;
  for (const auto& [name, formula] : all_formulas()) operators.push_back({name.second.c_str(), name.first.c_str()});
  return operators;
}

bool has_formula(const Node& node) {
  const Formula* formula = find_formula(node);
  if (!formula || node.num_inputs() == 0 || !node.input(0) || node.num_outputs() != 1 || !node.output()) return false;
  for (const Value* input : node.inputs()) {
    if (input && element_type(input->dtype()).empty()) return false;
  }
  return !element_type(node.output()->dtype()).empty() && formula->supports(node);
}

std::string formula_text(const Node& node, const std::vector<std::string>& operands) {
  return find_formula(node)->write(node, operands);
}

std::string reducer_text(const Node& node) {
  static const ReducerNames names = [] {
    ReducerNames all;
    for_each_sum(all);
    for_each_norm(all);
    for_each_extremum(all);
    return all;
  }();
  const DType dtype = node.input(0)->dtype();
  const std::string type = element_type(dtype);
  const auto found = names.of.find(node.op());
  if (found == names.of.end() || type.empty() || type == "bool" || is_half(dtype)) return "";
  return concat(found->second, "<", type, ", onnx_train::cuda::DeviceWide<", type, ">>");
}

}  // namespace onnx_train::cuda
