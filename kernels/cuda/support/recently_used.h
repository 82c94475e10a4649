// A cache of values that are expensive to make: holds a limited number and drops the least recently used first. Callers
// keep the values that they got. Any thread may call; a thread that makes a value delays only callers with the same
// key.
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
  // Returns the value of the key, which make() makes if it is absent. If make() throws, nothing is kept.
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
