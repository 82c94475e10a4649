#include "tools/report/tensorboard_log.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "events.pb.h"
#include "onnx_passes/ir/error.h"
#include "platform/process.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;
using tensorboard::Event;

constexpr const char* kPrefix = "events.out.tfevents.";

void add_value(const std::string& tag, double value, Event* event) {
  auto* scalar = event->mutable_summary()->add_value();
  scalar->set_tag(tag);
  scalar->set_simple_value(static_cast<float>(value));
}

// A new file. Several are read in the order of their names: the seconds come first, then a count.
File make_file(const std::string& folder, std::string* path) {
  const std::string host = platform::host_name();
  const auto seconds = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  for (int count = 0; count < 1000; ++count) {
    *path = concat(folder, "/", kPrefix, seconds, ".", host, ".", platform::process_id(), ".", count);
    File file = platform::create_file(*path);
    if (file.is_open()) return file;
    if (errno != EEXIST) break;
  }
  fail_as(ErrorCode::kFile, "cannot write ", *path, ": ", std::strerror(errno));
}

}  // namespace

uint32_t crc32c(const void* data, size_t bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> rows{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
      rows[i] = crc;
    }
    return rows;
  }();
  uint32_t crc = ~0U;
  for (const auto* at = static_cast<const unsigned char*>(data); bytes > 0; --bytes, ++at) {
    crc = table[(crc ^ *at) & 0xffU] ^ (crc >> 8);
  }
  return ~crc;
}

uint32_t masked_crc32c(const void* data, size_t bytes) {
  const uint32_t crc = crc32c(data, bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

TensorBoardLog::TensorBoardLog(const std::string& folder, int64_t step) {
  const std::string own = folder + "/tensorboard";
  std::error_code error;
  fs::create_directories(own, error);
  if (error) fail_as(ErrorCode::kCannotWrite, "cannot make the folder ", own, ": ", error.message());
  std::vector<fs::path> earlier;
  for (fs::directory_iterator it(own, error), end; step == 0 && !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(kPrefix)) earlier.push_back(it->path());
  }
  for (const fs::path& path : earlier) fs::remove(path, error);
  file_ = make_file(own, &path_);
  Event version, start;
  version.set_file_version("brain.Event:2");
  write(&version, 0);
  if (step == 0) return;
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  write(&start, step + 1);
}

TensorBoardLog::~TensorBoardLog() = default;

void TensorBoardLog::write(Event* event, int64_t step) {
  event->set_wall_time(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  event->set_step(step);
  const std::string bytes = event->SerializeAsString();
  const uint64_t length = bytes.size();
  const uint32_t of_length = masked_crc32c(&length, sizeof length), of_bytes = masked_crc32c(bytes.data(), length);
  std::string record(reinterpret_cast<const char*>(&length), sizeof length);  // this machine is little-endian
  record.append(reinterpret_cast<const char*>(&of_length), sizeof of_length);
  record += bytes;
  record.append(reinterpret_cast<const char*>(&of_bytes), sizeof of_bytes);
  if (!file_.write(record.data(), record.size()))
    fail_as(ErrorCode::kFile, "cannot write ", path_, ": ", std::strerror(errno));
}

void TensorBoardLog::add(const StepReport& r) {
  Event event;
  add_value("train/loss", r.loss, &event);
  if (r.accuracy) add_value("train/accuracy", *r.accuracy, &event);
  for (const auto& [name, value] : r.metrics) add_value("train/" + name, value, &event);
  add_value("train/grad_norm", r.grad_norm, &event);
  add_value("train/lr", r.learning_rate, &event);
  if (r.loss_scale) add_value("train/loss_scale", *r.loss_scale, &event);
  add_value("time/ms", r.milliseconds, &event);
  if (r.milliseconds > 0)
    add_value("time/samples_per_second", 1e3 * static_cast<double>(r.samples) / r.milliseconds, &event);
  add_value("time/epoch", static_cast<double>(r.epoch), &event);
  write(&event, r.step);
}

void TensorBoardLog::add(const EvaluationReport& r) {
  Event event;
  add_value("epoch/train_loss", r.train_loss, &event);
  for (const auto& [name, value] : r.evaluation) add_value("eval/" + name, value, &event);
  write(&event, r.step);
}

}  // namespace onnx_train
