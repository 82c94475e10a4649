#include "kernels/lowering/layout/views.h"
#include "onnx_passes/operators/operators.h"

#include <algorithm>

#include "kernels/lowering/memory/lifetimes.h"
#include "kernels/lowering/memory/pieces.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/ir/roles.h"

namespace onnx_train {
namespace {

// Bytes in use at each node. Updates and maxima of ranges of nodes take logarithmic time.
class Usage {
 public:
  explicit Usage(const std::vector<size_t>& alive) : size_(static_cast<int>(alive.size())), parts_(4 * alive.size()) {
    if (size_ > 0) fill(1, 0, size_ - 1, alive);
  }

  void add(int from, int to, int64_t bytes) {
    if (size_ > 0) add(1, 0, size_ - 1, {from, to}, bytes);
  }
  int64_t most(int from, int to) const { return size_ > 0 ? most(1, 0, size_ - 1, {from, to}) : 0; }

 private:
  struct Segment {
    int64_t most = 0;   // maximum over the part's nodes, without bytes added to enclosing parts
    int64_t added = 0;  // bytes added to all nodes of the part; included in `most`
  };
  struct Nodes {
    int from, to;
  };

  void fill(size_t part, int first, int last, const std::vector<size_t>& alive) {
    if (first == last) {
      parts_[part].most = static_cast<int64_t>(alive[static_cast<size_t>(first)]);
      return;
    }
    const int middle = (first + last) / 2;
    fill(2 * part, first, middle, alive);
    fill(2 * part + 1, middle + 1, last, alive);
    parts_[part].most = std::max(parts_[2 * part].most, parts_[2 * part + 1].most);
  }

  void add(size_t part, int first, int last, Nodes nodes, int64_t bytes) {
    if (nodes.to < first || last < nodes.from) return;
    if (nodes.from <= first && last <= nodes.to) {
      parts_[part].most += bytes;
      parts_[part].added += bytes;
      return;
    }
    const int middle = (first + last) / 2;
    add(2 * part, first, middle, nodes, bytes);
    add(2 * part + 1, middle + 1, last, nodes, bytes);
    parts_[part].most = std::max(parts_[2 * part].most, parts_[2 * part + 1].most) + parts_[part].added;
  }

  int64_t most(size_t part, int first, int last, Nodes nodes) const {
    if (nodes.to < first || last < nodes.from) return 0;
    if (nodes.from <= first && last <= nodes.to) return parts_[part].most;
    const int middle = (first + last) / 2;
    return std::max(most(2 * part, first, middle, nodes), most(2 * part + 1, middle + 1, last, nodes)) +
           parts_[part].added;
  }

  int size_;
  std::vector<Segment> parts_;  // a binary tree
};

class Finder {
 public:
  Finder(const Graph& graph, size_t alignment, Views* views, ValueTable<ViewPlace>* places)
      : alignment_(alignment),
        next_values_(graph),
        lives_(graph),
        views_(*views),
        places_(*places),
        usage_(lives_.alive),
        most_(peak()) {
    for (const Value* output : graph.outputs()) {
      while (is_callers_.insert(output) && output->producer() && is_view(*output->producer())) {
        output = output->producer()->input(0);
      }
    }
    for (const Lifetime& lifetime : lives_.all) {
      memories_.push_back({lifetime.first, lifetime.last(), static_cast<int64_t>(lifetime.bytes)});
    }
  }

  // `nodes` have pieces and are in graph order.
  void run(const std::vector<const Node*>& nodes) {
    for (const Node* node : nodes) {
      if (!node->is("Concat")) take_pieces(*node);
    }
    // In reverse order, a Concat whose result is a piece can be placed inside a later Concat.
    for (size_t i = nodes.size(); i-- > 0;) {
      if (nodes[i]->is("Concat")) join_pieces(*nodes[i]);
    }
  }

  // Returns the most bytes in use at a node.
  int64_t peak() const { return usage_.most(0, static_cast<int>(lives_.nodes.size()) - 1); }

 private:
  struct Memory {
    int first, last;  // nodes
    int64_t bytes;
  };
  struct Piece {
    const Value* value;
    size_t offset;
  };

  void take_pieces(const Node& node) {
    const std::vector<size_t> offsets = piece_offsets(node);
    const ViewPlace whole = views_.place(node.input(0));
    if (is_read_after_update(*whole.memory)) return;
    std::vector<Piece> pieces;
    for (size_t i = 0; i < offsets.size(); ++i) {
      const Value* piece = node.outputs()[i];
      if (offsets[i] % alignment_ == 0 && !is_callers_.contains(piece)) pieces.push_back({piece, offsets[i]});
    }
    // Sharing all pieces needs less memory than sharing some, which keep the whole alive beside copies of the others.
    if (pieces.empty() || merge(pieces, whole)) return;
    for (const Piece& piece : pieces) merge({piece}, whole);
  }

  // Whether a node reads the state after its next value is computed: a view would then prevent the update in place.
  bool is_read_after_update(const Value& memory) const {
    const Value* next = next_values_.of(memory);
    return next && next->producer() && lives_.of(&memory).last() > lives_.position.at(next->producer());
  }

  void join_pieces(const Node& node) {
    const std::vector<size_t> offsets = piece_offsets(node);
    const ViewPlace whole = views_.place(node.output());
    std::vector<Piece> pieces;
    for (size_t i = 0; i < offsets.size(); ++i) {
      const Value* memory = views_.place(node.inputs()[i]).memory;
      const bool fills_it = bytes_of(*memory) == bytes_of(*node.inputs()[i]);
      const bool there = memory == whole.memory ||
                         std::any_of(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.value == memory; });
      if (offsets[i] % alignment_ == 0 && fills_it && !there && memory->producer() && !is_callers_.contains(memory))
        pieces.push_back({memory, offsets[i]});
    }
    if (!pieces.empty()) merge(pieces, whole);
  }

  // Stores the pieces in the memory of the whole if that does not increase the peak. Returns whether it did.
  bool merge(const std::vector<Piece>& pieces, const ViewPlace& whole) {
    Memory& memory = memory_of(whole.memory);
    Memory merged = memory;
    for (const Piece& piece : pieces) {
      merged.first = std::min(merged.first, memory_of(piece.value).first);
      merged.last = std::max(merged.last, memory_of(piece.value).last);
    }
    const auto exchange = [&](int sign) {
      add(merged, sign);
      add(memory, -sign);
      for (const Piece& piece : pieces) {
        if (&memory_of(piece.value) != &memory) add(memory_of(piece.value), -sign);
      }
    };
    exchange(1);
    if (usage_.most(merged.first, merged.last) > most_) {
      exchange(-1);
      return false;
    }
    memory = merged;
    for (const Piece& piece : pieces) places_[piece.value] = {whole.memory, whole.offset + piece.offset};
    return true;
  }

  Memory& memory_of(const Value* value) { return memories_[lives_.index.at(value)]; }
  void add(const Memory& memory, int sign) { usage_.add(memory.first, memory.last, sign * memory.bytes); }

  const size_t alignment_;
  const NextValues next_values_;
  const Lifetimes lives_;
  const Views& views_;
  ValueTable<ViewPlace>& places_;
  Usage usage_;
  const int64_t most_;
  std::vector<Memory> memories_;  // by index in Lifetimes
  Marks<Value> is_callers_;       // outputs of the graph, and values that they reshape
};

}  // namespace

Views::Views(const Graph& graph, size_t alignment) {
  std::vector<const Node*> with_pieces;
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (is_view(*node)) places_[node->output()] = place(node->input(0));
    if (!piece_offsets(*node).empty()) with_pieces.push_back(node);
  }
  Finder finder(graph, alignment, this, &places_);
  finder.run(with_pieces);
  peak_ = static_cast<size_t>(finder.peak());
}

ViewPlace Views::place(const Value* value) const {
  ViewPlace place{value, 0};
  for (const ViewPlace* found = places_.find(value); found; found = places_.find(place.memory)) {
    place = {found->memory, found->offset + place.offset};
  }
  return place;
}

bool Views::is_done(const Node& node) const {
  if (is_view(node)) return place(node.output()) == place(node.input(0));
  const std::vector<size_t> offsets = piece_offsets(node);
  const bool joins = node.is("Concat");
  const ViewPlace whole = offsets.empty() ? ViewPlace{} : place(joins ? node.output() : node.input(0));
  for (size_t i = 0; i < offsets.size(); ++i) {
    const Value* piece = joins ? node.inputs()[i] : node.outputs()[i];
    if (place(piece) != ViewPlace{whole.memory, whole.offset + offsets[i]}) return false;
  }
  return !offsets.empty();
}

}  // namespace onnx_train
