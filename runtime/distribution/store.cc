#include "runtime/distribution/store.h"

#include <cstdint>
#include <cstring>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// torch/csrc/distributed/c10d/TCPStoreBackend.hpp: one byte for the query; numbers and lengths as the machine has them.
enum class Query : uint8_t { kValidate = 0, kSet = 1, kGet = 3, kWait = 6 };
constexpr uint32_t kMagic = 0x3C85F7CE;
constexpr uint8_t kStopWaiting = 0;
constexpr uint64_t kLongest = 4096;  // of a value of ours

void add(std::string* message, const void* data, size_t bytes) {
  message->append(static_cast<const char*>(data), bytes);
}
void add_text(std::string* message, const std::string& text) {
  const uint64_t size = text.size();
  add(message, &size, sizeof(size));
  *message += text;
}
std::string begin(Query query) { return std::string(1, static_cast<char>(query)); }

}  // namespace

StoreClient::StoreClient(const std::string& host, int port, Deadline deadline)
    : socket_(Socket::connect(host, port, deadline)), deadline_(deadline) {
  std::string message = begin(Query::kValidate);
  add(&message, &kMagic, sizeof(kMagic));
  socket_.send(message.data(), message.size(), deadline_);
}

void StoreClient::set(const std::string& key, const std::string& value) {
  std::string message = begin(Query::kSet);
  add_text(&message, key);
  add_text(&message, value);
  socket_.send(message.data(), message.size(), deadline_);
}

std::string StoreClient::get(const std::string& key) {
  std::string message = begin(Query::kWait);
  const uint64_t keys = 1;
  add(&message, &keys, sizeof(keys));
  add_text(&message, key);
  socket_.send(message.data(), message.size(), deadline_);
  uint8_t answer = 0;
  socket_.receive(&answer, sizeof(answer), deadline_);
  if (answer != kStopWaiting) fail("the store at ", socket_.peer(), " has no '", key, "'");
  message = begin(Query::kGet);
  add_text(&message, key);
  socket_.send(message.data(), message.size(), deadline_);
  uint64_t size = 0;
  socket_.receive(&size, sizeof(size), deadline_);
  if (size > kLongest) fail("the store at ", socket_.peer(), " answers '", key, "' with ", size, " bytes");
  std::string value(size, '\0');
  socket_.receive(value.data(), size, deadline_);
  return value;
}

}  // namespace onnx_train
