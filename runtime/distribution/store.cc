#include "runtime/distribution/store.h"

#include <cstring>

#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr std::chrono::seconds kPatience{10};  // with a store that does not answer

void append(std::string* message, const void* data, size_t bytes) {
  message->append(static_cast<const char*>(data), bytes);
}
void add_number(std::string* message, uint64_t number) { append(message, &number, sizeof(number)); }
void add_text(std::string* message, const std::string& text) {
  add_number(message, text.size());
  *message += text;
}
std::string begin(StoreProtocol::Query query) { return std::string(1, static_cast<char>(query)); }

}  // namespace

StoreClient::StoreClient(const std::string& host, int port, Deadline deadline)
    : socket_(Socket::connect(host, port, deadline)), deadline_(deadline + kPatience) {
  std::string message = begin(StoreProtocol::kValidate);
  append(&message, &StoreProtocol::kMagic, sizeof(StoreProtocol::kMagic));
  socket_.send(message.data(), message.size(), deadline_);
}

template <typename T>
T StoreClient::receive() {
  T value{};
  socket_.receive(&value, sizeof(value), deadline_);
  return value;
}

void StoreClient::set(const std::string& key, const std::string& value) {
  std::string message = begin(StoreProtocol::kSet);
  add_text(&message, key);
  add_text(&message, value);
  socket_.send(message.data(), message.size(), deadline_);
}

std::string StoreClient::get(const std::string& key) {
  std::string message = begin(StoreProtocol::kGet);
  add_text(&message, key);
  socket_.send(message.data(), message.size(), deadline_);
  const auto size = receive<uint64_t>();
  if (size > StoreProtocol::kLongest)
    fail("the store at ", socket_.peer(), " answers '", key, "' with ", size, " bytes");
  std::string value(size, '\0');
  socket_.receive(value.data(), size, deadline_);
  return value;
}

int64_t StoreClient::add(const std::string& key, int64_t number) {
  std::string message = begin(StoreProtocol::kAdd);
  add_text(&message, key);
  add_number(&message, static_cast<uint64_t>(number));
  socket_.send(message.data(), message.size(), deadline_);
  return receive<int64_t>();
}

bool StoreClient::has(const std::vector<std::string>& keys) {
  std::string message = begin(StoreProtocol::kCheck);
  add_number(&message, keys.size());
  for (const std::string& key : keys) add_text(&message, key);
  socket_.send(message.data(), message.size(), deadline_);
  return receive<uint8_t>() == StoreProtocol::kReady;
}

}  // namespace onnx_train
