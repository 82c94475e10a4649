#include "tests/support/async_host_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <utility>

#include "kernels/host.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// Addresses of a device, which it never uses again.
#if defined(__SANITIZE_THREAD__)
constexpr size_t kSpace = size_t{1} << 36;  // the sanitizer leaves no more
#elif defined(__x86_64__)
constexpr size_t kSpace = size_t{1} << 40;
#else
constexpr size_t kSpace = size_t{1} << 34;  // QEMU 7.2 takes memory for each page of a mapping, and keeps it
#endif
constexpr size_t kPage = 4096;

size_t padded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

class AsyncHostStream : public Stream {
 public:
  using Work = std::function<void()>;

  explicit AsyncHostStream(AsyncHostDevice* device) : device_(*device), thread_([this] { work(); }) {}
  ~AsyncHostStream() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void copy_from_host(void* to, const void* from, size_t bytes) override {
    const auto* begin = static_cast<const char*>(from);
    push([this, to, staged = std::vector<char>(begin, begin + bytes)] {
      std::memcpy(device_.reachable(to), staged.data(), staged.size());
    });
  }
  void copy_to_host(void* to, const void* from, size_t bytes) override {
    push([=, this] { std::memcpy(to, device_.reachable(from), bytes); });
  }
  void copy(const Transfer& transfer) override {
    push([this, transfer] {
      std::memmove(device_.reachable(transfer.to), device_.reachable(transfer.from), transfer.bytes);
    });
  }
  void commit(const std::vector<Transfer>& transfers, const Fault* fault) override {
    push([this, transfers, fault] {
      if (static_cast<const Fault*>(device_.reachable(fault))->node != 0) return;
      for (const Transfer& t : transfers) std::memmove(device_.reachable(t.to), device_.reachable(t.from), t.bytes);
    });
  }
  void synchronize() override { wait(mark()); }
  int64_t mark() override {
    const std::lock_guard lock(mutex_);
    return enqueued_;
  }
  void wait(int64_t mark) override {
    std::unique_lock lock(mutex_);
    done_changed_.wait(lock, [this, mark] { return done_ >= mark; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  std::unique_ptr<Recording> record(const std::function<void()>& enqueue) override;

  void push(Work work) {
    if (recorded_) return recorded_->push_back(std::move(work));
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
      ++enqueued_;
    }
    changed_.notify_all();
  }
  AsyncHostDevice& device() { return device_; }

 private:
  void work() {
    std::mt19937 bits(7);
    const int most = device_.options_.most_microseconds;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Work next = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (most > 0 && bits() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(bits() % most));
      std::exception_ptr error;
      try {
        next();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error && !error_) error_ = error;
      ++done_;
      done_changed_.notify_all();
    }
  }

  AsyncHostDevice& device_;
  std::mutex mutex_;
  std::condition_variable changed_, done_changed_;
  std::deque<Work> queue_;
  int64_t enqueued_ = 0, done_ = 0;  // pieces of work
  bool ends_ = false;
  std::exception_ptr error_;
  std::vector<Work>* recorded_ = nullptr;
  std::thread thread_;
};

namespace {

class AsyncHostRecording : public Recording {
 public:
  AsyncHostRecording(AsyncHostStream* stream, std::atomic<int64_t>* replays) : stream_(*stream), replays_(*replays) {}
  void replay() override {
    ++replays_;
    for (const AsyncHostStream::Work& work : work_) stream_.push(work);
  }

  std::vector<AsyncHostStream::Work> work_;

 private:
  AsyncHostStream& stream_;
  std::atomic<int64_t>& replays_;
};

// A run of a kernel of the CPU, as the stream's thread does it. The addresses are those at the time of the call.
class DelayedRun {
 public:
  DelayedRun(const Prepared& prepared, const NodeSpec& spec)
      : run_(prepared.run), inputs_(spec.num_inputs()), outputs_(spec.num_outputs()), threads_(spec.threads()) {}

  void operator()(const Launch& launch) const {
    auto* stream = static_cast<AsyncHostStream*>(launch.stream);
    std::vector<const void*> inputs(launch.inputs, launch.inputs + inputs_);
    std::vector<void*> outputs(launch.outputs, launch.outputs + outputs_);
    stream->push([run = run_, device = &stream->device(), threads = threads_, launch, inputs, outputs]() mutable {
      Launch here = launch;
      here.fault = static_cast<Fault*>(device->reachable(launch.fault));
      bool in_place = false;  // as updates of states are
      for (const void* output : outputs) {
        in_place = in_place || (output && std::find(inputs.begin(), inputs.end(), output) != inputs.end());
      }
      if (here.fault->node != 0 && in_place) return;
      for (const void*& input : inputs) input = device->reachable(input);
      for (void*& output : outputs) output = device->reachable(output);
      here.inputs = inputs.data();
      here.outputs = outputs.data();
      here.workspace = device->reachable(launch.workspace);
      if (num_threads() != threads) set_num_threads(threads);
      run(here);
    });
  }

 private:
  std::function<void(const Launch&)> run_;
  int inputs_, outputs_, threads_;
};

Kernel delayed(const Kernel& kernel) {
  Kernel row = kernel;
  row.prepare = [prepare = kernel.prepare](const NodeSpec& spec) {
    Prepared prepared = prepare(spec);
    prepared.run = DelayedRun(prepared, spec);
    return prepared;
  };
  return row;
}

}  // namespace

std::unique_ptr<Recording> AsyncHostStream::record(const std::function<void()>& enqueue) {
  if (!device_.options_.records) return nullptr;
  synchronize();
  auto recording = std::make_unique<AsyncHostRecording>(this, &device_.replays_);
  recorded_ = &recording->work_;
  enqueue();
  recorded_ = nullptr;
  return recording;
}

AsyncHostDevice::AsyncHostDevice(const Options& options) : options_(options), file_(memfd_create("async_host", 0)) {
  if (file_ < 0 || ftruncate(file_, kSpace) != 0) fail("no memory for the asynchronous device of the tests");
  const auto map = [this](int protection) {
    void* data = mmap(nullptr, kSpace, protection, MAP_SHARED | MAP_NORESERVE, file_, 0);
    if (data == MAP_FAILED) fail("no addresses for the asynchronous device of the tests");
    return static_cast<char*>(data);
  };
  shown_ = map(PROT_NONE);
  real_ = map(PROT_NONE);
  std::vector<std::vector<Kernel>> families(1);
  for (const Kernel* kernel : Device::cpu().kernels()) families[0].push_back(delayed(*kernel));
  kernels_ = std::make_unique<KernelTable>(std::move(families));
}

AsyncHostDevice::~AsyncHostDevice() {
  munmap(shown_, kSpace);
  munmap(real_, kSpace);
  close(file_);
}

void* AsyncHostDevice::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const size_t size = std::max(padded(bytes), kPage);
  if (bytes > kSpace || size > kSpace - end_ - kPage) fail_as(ErrorCode::kMemory, "out of memory: ", bytes, " bytes");
  const size_t offset = end_;
  end_ += size + kPage;  // a page between blocks that nobody may touch
  if (mprotect(real_ + offset, size, PROT_READ | PROT_WRITE) != 0) fail_as(ErrorCode::kMemory, "mprotect failed");
  blocks_[offset] = size;
  return shown_ + offset;
}

void AsyncHostDevice::free(void* data) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(static_cast<size_t>(static_cast<char*>(data) - shown_));
  if (block == blocks_.end()) fail("freed what the device has not allocated, or twice");
  // The pages go back, and whatever still uses them crashes.
  madvise(real_ + block->first, block->second, MADV_REMOVE);
  mprotect(real_ + block->first, block->second, PROT_NONE);
  blocks_.erase(block);
}

std::unique_ptr<Stream> AsyncHostDevice::make_stream() { return std::make_unique<AsyncHostStream>(this); }

size_t AsyncHostDevice::held() const {
  const std::lock_guard lock(mutex_);
  return blocks_.size();
}

int64_t AsyncHostDevice::replays() const { return replays_; }

void* AsyncHostDevice::reachable(const void* data) const {
  if (!data) return nullptr;
  const auto* address = static_cast<const char*>(data);
  if (address < shown_ || address >= shown_ + kSpace) fail("work of the device has a pointer to memory of the host");
  return real_ + (address - shown_);
}

}  // namespace onnx_train
