// Tables by node and by value, stored as vectors indexed by their numbers: hash maps by address would cause several
// cache misses per access. Owned by a pass; one thread.
#pragma once

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "onnx_passes/ir/graph.h"

namespace onnx_train {

template <typename Key, typename T>
class Table {
 public:
  // Null if there is no entry.
  const T* find(const Key* key) const {
    return key->id() < entries_.size() && entries_[key->id()] ? &*entries_[key->id()] : nullptr;
  }
  T* find(const Key* key) { return const_cast<T*>(std::as_const(*this).find(key)); }
  bool contains(const Key* key) const { return find(key) != nullptr; }
  const T& at(const Key* key) const {
    if (const T* found = find(key)) return *found;
    throw std::out_of_range("a table has no entry for " + describe(*key));
  }
  // Adds an entry if there is none.
  T& operator[](const Key* key) { return *try_emplace(key, T()).first; }
  // Returns the entry and whether it was added.
  std::pair<T*, bool> try_emplace(const Key* key, T value) {
    if (key->id() >= entries_.size()) grow(key->id());
    std::optional<T>& entry = entries_[key->id()];
    const bool added = !entry.has_value();
    if (added) entry = std::move(value);
    return {&*entry, added};
  }
  void erase(const Key* key) {
    if (key->id() < entries_.size()) entries_[key->id()].reset();
  }

 private:
  static std::string describe(const Node& node) { return node.label(); }
  static std::string describe(const Value& value) { return "value '" + value.name() + "'"; }
  void grow(size_t id) { entries_.resize(std::max(id + 1, entries_.size() * 2)); }

  std::vector<std::optional<T>> entries_;
};

template <typename T>
using NodeTable = Table<Node, T>;
template <typename T>
using ValueTable = Table<Value, T>;

// A set of nodes or values.
template <typename Key>
class Marks {
 public:
  Marks() = default;
  template <typename Range>
  explicit Marks(const Range& keys) {
    for (const Key* key : keys) insert(key);
  }
  bool contains(const Key* key) const { return key->id() < marks_.size() && marks_[key->id()]; }
  // False if it was a member already.
  bool insert(const Key* key) {
    if (key->id() >= marks_.size()) marks_.resize(std::max(key->id() + 1, marks_.size() * 2));
    const bool added = !marks_[key->id()];
    marks_[key->id()] = true;
    return added;
  }
  void erase(const Key* key) {
    if (key->id() < marks_.size()) marks_[key->id()] = false;
  }

 private:
  std::vector<bool> marks_;
};

}  // namespace onnx_train
