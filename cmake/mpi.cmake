# libonnx_train_mpi.so, which carries what ranks exchange over MPI (docs/distributed.md), where an MPI is found: the wheel
# that scripts/bootstrap --tests installs, or the system's; MPI_CXX_COMPILER names the mpicxx of another one. The command
# and the library know nothing of MPI; they load the module when mpirun has started them.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI QUIET COMPONENTS CXX)
if(NOT MPI_CXX_FOUND)
  return()
endif()

file(GLOB mpi_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/runtime/distribution/mpi/*.cc")
add_module(mpi ${mpi_sources})
target_link_libraries(onnx_train_mpi PRIVATE MPI::MPI_CXX xxhash)
install_module(mpi)
