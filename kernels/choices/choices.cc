#include "kernels/choices/choices.h"

#include <sstream>

#include "kernels/choices/cache.h"

namespace onnx_train {

void Choices::add(const std::string& text) {
  const std::lock_guard lock(mutex_);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    if (space != std::string::npos && space > 0 && space + 1 < line.size())
      forms_.emplace(line.substr(0, space), line.substr(space + 1));
  }
}

std::optional<std::string> Choices::find(const std::string& computation) const {
  const std::lock_guard lock(mutex_);
  const auto found = forms_.find(hash_of(computation));
  return found == forms_.end() ? std::nullopt : std::optional(found->second);
}

void Choices::keep(const std::string& computation, const std::string& form) {
  const std::lock_guard lock(mutex_);
  forms_[hash_of(computation)] = form;
}

std::string Choices::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [hash, form] : forms_) text += hash + " " + form + "\n";
  return text;
}

void Choices::add_timed(double seconds, bool is_final) {
  const std::lock_guard lock(mutex_);
  ++timed_.nodes;
  timed_.cut_short += is_final ? 0 : 1;
  timed_.seconds += seconds;
}

Choices::Timed Choices::timed() const {
  const std::lock_guard lock(mutex_);
  return timed_;
}

}  // namespace onnx_train
