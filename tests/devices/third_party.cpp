// A device of a third party (PrivateUse1) for a build of torch without any: memory of its own kind, several devices, a
// generator each, autocast, and collectives over gloo. Its kernels are the CPU's, so that its numbers are too.
#include <torch/extension.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace third_party {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;
constexpr DeviceType kType = DeviceType::PrivateUse1;

static DeviceIndex device_count = 1;
static thread_local DeviceIndex current = 0;
static DeviceIndex index_of(Device device) { return device.has_index() ? device.index() : current; }

// ---- memory ----

static std::mutex mutex;
static std::vector<std::array<size_t, 2>> used(16);  // bytes now, and at the peak, of each device

struct Block {
  void* pointer;
  size_t size;
  DeviceIndex device;
};

struct Memory final : c10::Allocator {
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    {
      std::lock_guard<std::mutex> lock(mutex);
      used[block->device][0] -= block->size;
    }
    std::free(block->pointer);
    delete block;
  }
  c10::DataPtr allocate(size_t size) override {
    auto* block = new Block{nullptr, size, current};
    if (size) {
      TORCH_CHECK(posix_memalign(&block->pointer, 64, size) == 0);
      std::memset(block->pointer, 0xFF, size);  // NaN: nothing may read what nothing has written
    }
    std::lock_guard<std::mutex> lock(mutex);
    auto& counts = used[current];
    counts[0] += size;
    counts[1] = std::max(counts[1], counts[0]);
    return {block->pointer, block, &release, Device(kType, current)};
  }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
};
static Memory memory;

static std::map<char*, size_t> pinned;  // host memory by address
struct Pinned final : c10::Allocator {
  static void release(void* pointer) {
    std::lock_guard<std::mutex> lock(mutex);
    pinned.erase(static_cast<char*>(pointer));
    std::free(pointer);
  }
  c10::DataPtr allocate(size_t size) override {
    void* pointer = nullptr;
    TORCH_CHECK(posix_memalign(&pointer, 64, std::max<size_t>(size, 1)) == 0);
    std::lock_guard<std::mutex> lock(mutex);
    pinned[static_cast<char*>(pointer)] = size;
    return {pointer, pointer, &release, Device(DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
};
static Pinned pinned_memory;
static bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  auto after = pinned.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  return after != pinned.begin() && address < std::prev(after)->first + std::prev(after)->second;
}

// ---- generators: the CPU's algorithm, a state of their own ----

struct Generator final : c10::GeneratorImpl {
  explicit Generator(DeviceIndex device)
      : c10::GeneratorImpl(Device(kType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override {
    auto* other = new Generator(device_.index());
    other->set_state(*get_state());
    return other;
  }
  at::Generator inner;
};
static at::Generator& default_generator(DeviceIndex device) {
  static std::vector<at::Generator> made = [] {
    std::vector<at::Generator> all;
    for (int index = 0; index < 16; ++index) all.push_back(at::make_generator<Generator>(DeviceIndex(index)));
    return all;
  }();
  return made.at(device < 0 ? current : device);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return device_count; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex device) const override { current = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(current, device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return std::exchange(current, device); }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current : device);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kType; }
  Device exchangeDevice(Device device) const override { return Device(kType, std::exchange(current, index_of(device))); }
  Device getDevice() const override { return Device(kType, current); }
  void setDevice(Device device) const override {
    TORCH_CHECK(index_of(device) < device_count, "no such device");
    current = index_of(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override { current = index_of(device); }
  Stream getStream(Device device) const override { return Stream(Stream::DEFAULT, Device(kType, index_of(device))); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return device_count; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// ---- kernels ----

static Tensor on_host(const Tensor& tensor) {  // the same memory, as a tensor of the CPU
  if (tensor.device().type() != kType) return tensor;
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  auto* data = const_cast<void*>(tensor.const_data_ptr());
  return at::from_blob(data, tensor.sizes(), tensor.strides(), [](void*) {}, options, Device(DeviceType::CPU));
}
static Tensor empty_memory_format(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                  std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(Device(kType, device ? index_of(*device) : current));
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}
static Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(Device(kType, device ? index_of(*device) : current));
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}
static Tensor& copy_(Tensor& self, const Tensor& given, bool) {
  if (self.numel() == 0) return self;
  at::AutoDispatchBelowADInplaceOrView below;
  auto target = on_host(self), source = on_host(given.resolve_conj().resolve_neg()).detach();
  target.copy_(source.expand(target.sizes()));
  return self;
}
static Tensor copy_from(const Tensor& self, const Tensor& to, bool) {
  Tensor target = to;
  return copy_(target, self, false);
}
static Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  Tensor target = to;
  if (target.sizes() != self.sizes()) target.resize_(self.sizes());
  return copy_(target, self, false);
}
static at::Scalar local_scalar_dense(const Tensor& self) { return at::_local_scalar_dense(on_host(self)); }

static Tensor strided(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  auto storage = c10::Storage(self.storage());
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), self.key_set(), self.dtype());
  at::native::setStrided(view, size, stride, offset.value_or(self.storage_offset()));
  return view;
}
static Tensor restrided(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return strided(self, size, stride, self.storage_offset());
}
static Tensor view(const Tensor& self, c10::IntArrayRef given) {
  at::DimVector size = at::infer_size_dv(given, self.numel());
  auto stride = at::detail::computeStride(self.sizes(), self.strides(), size);
  TORCH_CHECK(stride.has_value(), "view size is not compatible with input tensor's size and stride. Use .reshape(...).");
  return restrided(self, size, *stride);
}
static Tensor alias(const Tensor& self) { return restrided(self, self.sizes(), self.strides()); }
static const Tensor& resize_(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto storage = self.storage();
  auto bytes = at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset());
  if (bytes > storage.nbytes()) {
    c10::OptionalDeviceGuard guard(self.device());
    auto fresh = memory.allocate(bytes);
    if (storage.nbytes()) std::memcpy(fresh.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}
static Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.empty()) impl->set_sizes_contiguous(size);
  else impl->set_sizes_and_strides(size, stride);
  return self;
}
static Tensor& set_whole(Tensor& self, at::Storage source) {
  auto count = int64_t(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}
static Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

static void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  size_t base = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {  // as on a GPU, operands are on one device, but for numbers and indices
    const auto& value = (*stack)[base + i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const auto& tensor = value.toTensor();
    TORCH_CHECK(tensor.device().type() == kType || tensor.dim() == 0,
                "Expected all tensors to be on the same device: argument ", arguments[i].name(), " of ",
                op.schema().name(), " is on ", tensor.device());
  }
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return at::native::cpu_fallback(op, stack);
  for (size_t i = 0; i < arguments.size(); ++i)
    if ((*stack)[base + i].isGenerator()) (*stack)[base + i] = c10::IValue();
  auto* mine = static_cast<Generator*>(default_generator(current).unsafeGetGeneratorImpl());
  auto& of_cpu = const_cast<at::Generator&>(at::detail::getDefaultCPUGenerator());
  auto before = of_cpu.get_state();
  of_cpu.set_state(mine->inner.get_state());
  at::native::cpu_fallback(op, stack);
  mine->inner.set_state(of_cpu.get_state());
  of_cpu.set_state(before);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("as_strided", &strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &restrided);
  m.impl("alias", &alias);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
}
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FULL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(FULL)
}

// ---- collectives: of this device's tensors alone; gloo exchanges copies of them ----

struct Collectives final : c10d::Backend {
  Collectives(int rank, int size, c10::intrusive_ptr<c10d::Backend> inner) : Backend(rank, size), inner(std::move(inner)) {}
  const std::string getBackendName() const override { return "third_party"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return 0; }

  using Tensors = std::vector<Tensor>;
  using Work = c10::intrusive_ptr<c10d::Work>;
  static Tensors down(const Tensors& tensors) {
    Tensors copies;
    for (auto& one : tensors) {
      TORCH_CHECK(one.device().type() == kType, "No backend type associated with device type ", one.device().type());
      copies.push_back(one.detach().contiguous().to(at::kCPU));
    }
    return copies;
  }
  static Work up(const Tensors& to, const Tensors& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i].detach().copy_(from[i]);
    std::vector<Device> devices;
    if (!to.empty()) devices.push_back(to[0].device());
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    future->markCompleted(c10::IValue(to));
    return c10d::Work::create_from_future(future);
  }
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto copies = down(tensors);
    inner->broadcast(copies, options)->wait();
    return up(tensors, copies);
  }
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& given) override {
    auto copies = down(tensors);
    inner->allreduce(copies, given)->wait();
    return up(tensors, copies);
  }
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto source = down(inputs);
    std::vector<Tensors> copies{down(outputs.at(0))};
    inner->allgather(copies, source, options)->wait();
    return up(outputs[0], copies[0]);
  }
  Work _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    auto source = down({input.reshape({-1})});
    std::vector<Tensors> parts(1);
    for (int i = 0; i < getSize(); ++i) parts[0].push_back(at::empty_like(source[0]));
    inner->allgather(parts, source, options)->wait();
    return up({output}, {at::cat(parts[0]).reshape(output.sizes())});
  }
  Work barrier(const c10d::BarrierOptions&) override {
    inner->barrier(c10d::BarrierOptions())->wait();
    return up({}, {});
  }
  c10::intrusive_ptr<c10d::Backend> inner;
};

static Hooks hooks;
static void install(int devices) {
  device_count = DeviceIndex(devices);
  c10::SetAllocator(kType, &memory);
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

}  // namespace third_party

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace third_party;
  auto backend = py::module::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<Collectives, c10d::Backend, c10::intrusive_ptr<Collectives>>(m, "Collectives")
      .def(py::init([](int rank, int size, c10::intrusive_ptr<c10d::Backend> inner) {
        return c10::make_intrusive<Collectives>(rank, size, std::move(inner));
      }));
  m.def("install", &install);
  m.def("device_count", [] { return int(device_count); });
  m.def("current_device", [] { return int(current); });
  m.def("set_device", [](int device) { Guard().setDevice(Device(kType, DeviceIndex(device))); });
  m.def("generator", [](int device) { return default_generator(DeviceIndex(device)); });
  m.def("allocated", [](int device) { return used.at(device)[0]; });
  m.def("peak", [](int device) { return used.at(device)[1]; });
  m.def("reset_peak", [](int device) { used.at(device)[1] = used.at(device)[0]; });
}
