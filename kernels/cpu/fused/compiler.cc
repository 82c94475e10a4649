// Compiles the body of a fused node into a program. Values that are views or broadcasts of others cost nothing: their
// readers read the source. Every other value is written by an instruction, to a register or directly to an output.
#include <algorithm>

#include "kernels/cpu/fused/geometry.h"
#include "kernels/cpu/fused/instructions.h"
#include "kernels/cpu/fused/operations.h"
#include "kernels/cpu/fused/registers.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/geometry/fusion/fused_body.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train::cpu {
namespace {

constexpr int64_t kPieceElements = 65536, kMaxPieces = 64;
constexpr size_t kMostAccumulatorBytes = 4 << 20;
constexpr int64_t kTerminalAccumulators = 512;  // least number of accumulators of a terminal reduction over short rows

size_t element_bytes(const Value& value) { return size_of(value.dtype()); }

class Compiler {
 public:
  Compiler(const NodeSpec& spec, FusedBody body) : spec_(spec), body_(std::move(body)), geometry_(find_geometry()) {
    program_.size = body_.space.size;
    program_.row_size = body_.space.row_size;
    program_.run = geometry_.run;
  }

  Program run() {
    find_ports();
    for (Node* node = body_.graph->first(); node; node = node->next()) add_node(*node);
    for (size_t port = 0; port < body_.outputs.size(); ++port) add_output(static_cast<int>(port));
    place_registers();
    choose_pieces();
    find_in_place();
    return std::move(program_);
  }

 private:
  // ---- Sources

  Extent extent(const Value* value) const {
    return body_.extent(value) == ValueExtent::kRow ? Extent::kRows : Extent::kElements;
  }

  Geometry find_geometry() const {
    std::vector<Broadcast> patterns;
    for (Node* node = body_.graph->first(); node; node = node->next()) {
      if (node->is("Constant")) continue;
      const Value& out = *node->output();
      const bool reduces = is_reduction(*node);
      if (reduces && body_.extent(&out) == ValueExtent::kTerminal) patterns.push_back(kept_axes(*node));
      for (int i = 0; i < num_operands(*node) && !reduces && extent(&out) == Extent::kElements; ++i) {
        if (!node->input(i)) continue;
        const FusedSource from = body_.source(node->input(i), out);
        if (from.pattern && !from.root->producer()) patterns.push_back(*from.pattern);
      }
    }
    return Geometry(body_.space, patterns);
  }

  // ---- Slots

  int add_slot(const Slot& slot) {
    program_.slots.push_back(slot);
    return static_cast<int>(program_.slots.size()) - 1;
  }

  int now() const { return static_cast<int>(program_.instructions.size()); }

  int add_register(size_t bytes, Extent extent, std::vector<int> over = {}) {
    const int slot = add_slot({Slot::kScratch, bytes});
    (extent == Extent::kElements ? element_registers_ : row_registers_).write(slot, bytes, now(), std::move(over));
    program_.slots.back().per_row = extent == Extent::kRows;
    return slot;
  }

  void read(int slot) {
    if (slot < 0) return;
    const Slot& s = program_.slots[static_cast<size_t>(slot)];
    if (s.kind == Slot::kScratch) (s.per_row ? row_registers_ : element_registers_).read(slot, now());
    if (s.kind == Slot::kInput || s.kind == Slot::kFixedInput) {
      last_read_[static_cast<size_t>(s.port)] = now();
      if (s.kind == Slot::kFixedInput || s.pattern) in_order_[static_cast<size_t>(s.port)] = false;
    }
  }

  void emit(Instruction instruction) { program_.instructions.push_back(std::move(instruction)); }

  void find_ports() {
    for (size_t i = 0; i < body_.inputs.size(); ++i) {
      if (body_.inputs[i]) ports_.emplace(body_.inputs[i], static_cast<int>(i));
    }
    last_read_.assign(body_.inputs.size(), -1);
    in_order_.assign(body_.inputs.size(), true);
    for (size_t o = 0; o < body_.outputs.size(); ++o) output_ports_.emplace(body_.outputs[o], static_cast<int>(o));
    for (size_t o = 0; o < body_.outputs.size(); ++o) {
      const Value* root = body_.source(body_.outputs[o], *body_.outputs[o]).root;
      const auto at = body_.value_extent_of(root);  // differs if a value per row is expanded to elements
      if (at && *at == body_.extent(body_.outputs[o])) output_ports_.emplace(root, static_cast<int>(o));
    }
    writers_.assign(body_.outputs.size(), -1);
  }

  // ---- Operands

  SlotOperand constant(const Value* value) {
    const auto [place, added] = constant_slots_.try_emplace(value, 0);
    if (added) {
      program_.constants.push_back(constant_of(value));
      place->second =
          add_slot({Slot::kConstant, element_bytes(*value), 0, static_cast<int>(program_.constants.size()) - 1});
    }
    return {place->second, false};
  }

  // Returns a slot with equal properties if there is one, else a new one.
  int input_slot(const Slot& slot) {
    for (size_t s = 0; s < program_.slots.size(); ++s) {
      const Slot& known = program_.slots[s];
      if (known.kind == slot.kind && known.port == slot.port && known.per_row == slot.per_row &&
          known.pattern == slot.pattern) {
        return static_cast<int>(s);
      }
    }
    return add_slot(slot);
  }

  SlotOperand input(const Value* value, const std::optional<Broadcast>& pattern, Extent extent) {
    const int port = ports_.at(value);
    const bool per_row = extent == Extent::kRows;
    const Slot slot{Slot::kInput, element_bytes(*value), 0, port, per_row, pattern};
    if (!pattern) return {input_slot(slot), true};
    if (pattern->is_scalar(0)) {
      return {input_slot({Slot::kFixedInput, element_bytes(*value), 0, port}), false};
    }
    if (per_row ? geometry_.rows == 1 : geometry_.reads_in_place(*pattern)) {
      return {input_slot(slot), per_row || pattern->moves(0)};
    }
    return {loaded(value, *pattern, extent), true};
  }

  // Gathers into a register an input whose runs are too short to be read in place.
  int loaded(const Value* value, const Broadcast& pattern, Extent extent) {
    for (const Loaded& known : loaded_) {
      if (known.value == value && known.extent == extent && known.pattern == pattern) return known.slot;
    }
    const int from = input_slot({Slot::kFixedInput, element_bytes(*value), 0, ports_.at(value)});
    read(from);
    const int slot = add_register(element_bytes(*value), extent);
    Instruction instruction = load(from, pattern, element_bytes(*value), slot, extent);
    if (extent == Extent::kElements && pattern.repeats(0) && geometry_.aligns(pattern.run_length())) {
      element_registers_.keep(slot);
      program_.once.push_back(std::move(instruction));
    } else {
      emit(std::move(instruction));
    }
    loaded_.push_back({value, pattern, extent, slot});
    return slot;
  }

  SlotOperand operand(const Value* value, const Value& reader, Extent extent) {
    if (!value) return {-1, false};
    const FusedSource from = body_.source(value, reader);
    if (from.root->producer() && from.root->producer()->is("Constant")) return constant(from.root);
    if (!body_.computes(from.root)) return input(from.root, from.pattern, extent);
    const int slot = slots_of_.at(from.root);
    if (this->extent(from.root) == extent) return {slot, true};
    if (geometry_.rows == 1) return {slot, false};
    const auto [place, added] = broadcast_rows_.try_emplace(from.root, 0);
    if (added) {
      read(slot);
      place->second = add_register(element_bytes(*from.root), Extent::kElements);
      emit(broadcast_rows(slot, program_.row_size, element_bytes(*from.root), place->second));
    }
    return {place->second, true};
  }

  SlotOperand moving(SlotOperand from, size_t bytes, Extent extent) {
    if (from.moves) return from;
    read(from.slot);
    const int slot = add_register(bytes, extent);
    emit(copy(from, bytes, slot, extent));
    return {slot, true};
  }

  // ---- Nodes

  void add_node(const Node& node) {
    if (node.is("Constant") || body_.is_alias(node)) return;
    if (is_reduction(node)) return add_reduction(node);
    const Extent extent = this->extent(node.output());
    std::vector<SlotOperand> operands;
    for (int i = 0; i < num_operands(node); ++i) operands.push_back(operand(node.input(i), *node.output(), extent));
    const ElementwiseRow* row = find_elementwise_row(node);
    const bool any = std::any_of(operands.begin(), operands.end(), [](const SlotOperand& o) { return o.moves; });
    const int must_move = row && row->operands > 1 && any ? 0 : 1;
    for (int i = 0; i < must_move; ++i) {
      SlotOperand& o = operands[static_cast<size_t>(i)];
      o = moving(o, element_bytes(*node.input(i)), extent);
    }
    for (const SlotOperand& o : operands) read(o.slot);
    const int result = add_result(node, extent, row ? operands_to_overwrite(operands) : std::vector<int>{});
    emit(row ? compute(fused_loop(*row, node), operands, result, extent)
             : copy(operands[0], element_bytes(*node.output()), result, extent));
  }

  // Returns the first two operands, if they move and no later operand reads the same slot.
  static std::vector<int> operands_to_overwrite(const std::vector<SlotOperand>& operands) {
    std::vector<int> slots;
    for (size_t i = 0; i < std::min<size_t>(operands.size(), 2); ++i) {
      const auto same = [&](const SlotOperand& o) { return o.slot == operands[i].slot; };
      if (operands[i].moves &&
          std::none_of(operands.begin() + std::min<long>(2, std::ssize(operands)), operands.end(), same)) {
        slots.push_back(operands[i].slot);
      }
    }
    return slots;
  }

  // Returns the slot for the node's output: an output of the call or a register.
  int add_result(const Node& node, Extent extent, const std::vector<int>& over) {
    const Value* value = node.output();
    const auto port = output_ports_.find(value);
    int slot = 0;
    if (port != output_ports_.end()) {
      slot = add_slot({Slot::kOutput, element_bytes(*value), 0, port->second, extent == Extent::kRows});
      writers_[static_cast<size_t>(port->second)] = now();
      overwrites_[port->second] = over;
    } else {
      slot = add_register(element_bytes(*value), extent, over);
    }
    slots_of_[value] = slot;
    return slot;
  }

  void add_reduction(const Node& node) {
    const Value* in = node.input(0);
    SlotOperand x = operand(in, *in, Extent::kElements);
    x = moving(x, element_bytes(*in), Extent::kElements);
    read(x.slot);
    const Reducer* reducer = find_reducer(node);
    if (body_.extent(node.output()) == ValueExtent::kRow) {
      const int result = add_result(node, Extent::kRows, {});
      return emit(reduce_rows(reducer, x.slot, program_.row_size, result));
    }
    const Broadcast kept = kept_axes(node);
    TerminalReduction terminal{reducer,
                               output_ports_.at(node.output()),
                               num_elements_of(*node.output()),
                               1,
                               program_.size / num_elements_of(*node.output()),
                               program_.accumulator_bytes};
    if (kept.repeats(0) && geometry_.aligns(terminal.size)) {
      terminal.repeats = std::max<int64_t>(kTerminalAccumulators / terminal.size, 1);
    }
    const auto bytes = static_cast<size_t>(terminal.size * terminal.repeats) * reducer->accumulator_bytes;
    program_.accumulator_bytes += (bytes + 63) / 64 * 64;
    program_.terminal_reductions.push_back(terminal);
    emit(add_to_terminal(terminal, x.slot, kept));
  }

  // Copies a view of another value, or an input, to an output that no instruction has written.
  void add_output(int port) {
    const Value* value = body_.outputs[static_cast<size_t>(port)];
    const Value* root = body_.source(value, *value).root;
    const bool terminal = body_.extent(value) == ValueExtent::kTerminal;
    const auto first = output_ports_.find(root);
    if (terminal || (first != output_ports_.end() && first->second == port)) return;
    const Extent extent = this->extent(value);
    const SlotOperand from = operand(value, *value, extent);
    read(from.slot);
    const int slot = add_slot({Slot::kOutput, element_bytes(*value), 0, port, extent == Extent::kRows});
    writers_[static_cast<size_t>(port)] = now();
    emit(copy(from, element_bytes(*value), slot, extent));
  }

  // ---- Memory

  void place_registers() {
    element_registers_.assign();
    row_registers_.assign();
    size_t bytes = element_registers_.bytes_per_element();
    for (const Slot& slot : program_.slots) {
      if ((slot.kind == Slot::kInput || slot.kind == Slot::kOutput) && !slot.per_row) bytes += slot.bytes;
    }
    program_.block = geometry_.block(bytes);
    const auto elements = static_cast<size_t>(program_.block), rows = static_cast<size_t>(geometry_.rows);
    for (int slot : element_registers_.slots()) {
      program_.slots[static_cast<size_t>(slot)].offset = element_registers_.offset(slot, elements);
    }
    const size_t end = element_registers_.end(elements);
    for (int slot : row_registers_.slots()) {
      program_.slots[static_cast<size_t>(slot)].offset = end + row_registers_.offset(slot, rows);
    }
    program_.register_bytes = end + row_registers_.end(rows);
  }

  void choose_pieces() {
    const int64_t work = std::max<int64_t>(now() / 2, 1) * program_.block;
    program_.grain = kElementGrain / work + 1;
    if (program_.terminal_reductions.empty()) return;
    const auto most = static_cast<int64_t>(kMostAccumulatorBytes / program_.accumulator_bytes) + 1;
    program_.pieces = std::clamp<int64_t>(std::min(program_.size / kPieceElements, most), 1, kMaxPieces);
    program_.pieces = std::min(program_.pieces, program_.num_blocks());
  }

  // Returns the value whose memory the call's input is a view of.
  const Value* memory_of(int port) const {
    const Value* value = spec_.node().input(port);
    while (value && value->producer() && is_view(*value->producer())) value = value->producer()->input(0);
    return value;
  }

  // Returns the last instruction that reads the memory of input `port`; nothing if one reads it out of order.
  std::optional<int> last_reader(int port) const {
    int last = -1;
    for (size_t other = 0; other < last_read_.size(); ++other) {
      if (memory_of(static_cast<int>(other)) != memory_of(port)) continue;
      if (!in_order_[other]) return std::nullopt;
      last = std::max(last, last_read_[other]);
    }
    return last;
  }

  // An output may overwrite an input all of whose blocks are read before the same block of the output is written.
  void find_in_place() {
    for (size_t s = 0; s < program_.slots.size(); ++s) {
      const Slot& out = program_.slots[s];
      if (out.kind != Slot::kOutput) continue;
      const int written = writers_[static_cast<size_t>(out.port)];
      for (size_t i = 0; i < program_.slots.size(); ++i) {
        const Slot& in = program_.slots[i];
        if (in.kind != Slot::kInput || in.bytes != out.bytes || in.per_row != out.per_row) continue;
        const auto last = last_reader(in.port);
        const auto over = overwrites_.find(out.port);
        const bool by_writer =
            over != overwrites_.end() && std::count(over->second.begin(), over->second.end(), static_cast<int>(i)) > 0;
        if (last && (*last < written || (*last == written && by_writer))) {
          program_.in_place.push_back({out.port, in.port});
        }
      }
    }
  }

  struct Loaded {
    const Value* value;
    Broadcast pattern;
    Extent extent;
    int slot;
  };

  const NodeSpec& spec_;
  const FusedBody body_;
  const Geometry geometry_;
  Program program_;
  std::unordered_map<const Value*, int> ports_, output_ports_;
  std::unordered_map<const Value*, int> slots_of_, constant_slots_, broadcast_rows_;
  std::vector<Loaded> loaded_;
  Registers element_registers_, row_registers_;
  std::vector<int> last_read_;  // for each input: the last instruction that reads it
  std::vector<bool> in_order_;  // for each input: whether every block reads only its own elements
  std::vector<int> writers_;    // for each output: the instruction that writes it
  std::unordered_map<int, std::vector<int>> overwrites_;  // for each output: the operands it may overwrite
};

}  // namespace

Program compile_fused(const NodeSpec& spec) {
  std::optional<FusedBody> body = read_body(spec, can_fuse);
  if (!body) fail(spec.node().label(), ": its body is not one fusion region of element-wise nodes");
  return Compiler(spec, std::move(*body)).run();
}

}  // namespace onnx_train::cpu
