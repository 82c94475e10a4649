// Values that are expensive to make, by what they are made from: at most so many, of which the least recently used one
// goes first. Whoever got a value keeps it. Any thread may call; a thread that makes a value delays only those that
// want the same one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace onnx_train::cuda {

template <typename Key, typename Value>
class RecentlyUsed {
 public:
  // The value of the key; make() makes it, unless it is kept. What make() throws is thrown here, and nothing is kept.
  template <typename Make>
  Value find(const Key& key, size_t most, const Make& make) {
    const std::shared_ptr<Entry> entry = entry_of(key, std::max<size_t>(most, 1));
    const std::lock_guard lock(entry->mutex);
    if (!entry->value) entry->value.emplace(make());
    return *entry->value;
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    std::mutex mutex;
    std::optional<Value> value;
    uint64_t last_used = 0;
  };

  std::shared_ptr<Entry> entry_of(const Key& key, size_t most) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Entry>& entry = entries_[key];
    if (!entry) entry = std::make_shared<Entry>();
    entry->last_used = ++clock_;
    const std::shared_ptr<Entry> found = entry;
    while (entries_.size() > most) {
      entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
        return a.second->last_used < b.second->last_used;
      }));
    }
    return found;
  }

  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<Entry>> entries_;
  uint64_t clock_ = 0;
};

}  // namespace onnx_train::cuda
