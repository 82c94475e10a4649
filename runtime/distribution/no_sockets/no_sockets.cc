// In the place of sockets/, on systems without a port of it: several processes cannot train together there.
#include "onnx_passes/ir/error.h"
#include "runtime/distribution/socket.h"
#include "runtime/distribution/store_server.h"

namespace onnx_train {
namespace {

[[noreturn]] void refuse_sockets() {
  fail_as(ErrorCode::kUsage, "this build has no sockets, by which several processes train together");
}

}  // namespace

Socket::~Socket() = default;
Socket Socket::connect(const std::string&, int, Deadline) { refuse_sockets(); }
Socket Socket::listen(int) { refuse_sockets(); }
Socket Socket::accept(Deadline) const { refuse_sockets(); }
void Socket::send(const void*, size_t, Deadline) const { refuse_sockets(); }
void Socket::receive(void*, size_t, Deadline) const { refuse_sockets(); }
int Socket::port() const { refuse_sockets(); }
std::string Socket::address() const { refuse_sockets(); }
std::string Socket::peer() const { refuse_sockets(); }

StoreServer::StoreServer(int) { refuse_sockets(); }
StoreServer::~StoreServer() = default;
void StoreServer::run() {}

}  // namespace onnx_train
