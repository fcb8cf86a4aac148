/* A stand-in for libnvidia-ml.so.1 that answers the calls Outrider makes of it, for tests of the real Python binding.
 *
 * Which GPU it plays is read from the environment at every call:
 *   FAKE_NVML_INIT=<code>        nvmlInit answers this error
 *   FAKE_NVML_COUNT=<n>          so many GPUs (1)
 *   FAKE_NVML_TOTAL|USED|RESERVED=<bytes>
 *   FAKE_NVML_FAIL=<call>:<code>[,...]   these calls answer an error; a call without its prefix "nvml", "Device"
 *   FAKE_NVML_LOST_AFTER=<n>     after n calls of a device everything answers 15 (GPU is lost)
 *   FAKE_NVML_LOST_FILE=<path>   ... or as soon as this file exists
 *   FAKE_NVML_HANG=<call>        this call never comes back
 *   FAKE_NVML_NOISE=1            nvmlInit writes to standard output, as no library should
 *   FAKE_NVML_CRASH=<call>       this call ends the process with SIGABRT
 * Compiled with -DOLD_DRIVER it lacks the symbols that drivers before release 515 lacked.
 * Numbers: an RTX 3090 as seen on real machines.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, LOST = 15, VERSION = 25 };

static int initialised;
static int calls;
static char gpus[16];

static unsigned long long setting(const char *name, unsigned long long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static int named(const char *variable, const char *call) {
    const char *text = getenv(variable);
    return text && strcmp(text, call) == 0;
}

/* the code that FAKE_NVML_FAIL sets for a call, or 0 */
static int failure(const char *call) {
    const char *at = getenv("FAKE_NVML_FAIL");
    size_t length = strlen(call);
    while (at && *at) {
        if (strncmp(at, call, length) == 0 && at[length] == ':') return atoi(at + length + 1);
        at = strchr(at, ',');
        if (at) at++;
    }
    return OK;
}

static int enter(const char *call) {
    if (named("FAKE_NVML_HANG", call)) for (;;) pause();
    if (named("FAKE_NVML_CRASH", call)) abort();
    if (!initialised) return UNINITIALIZED;
    return failure(call);
}

static int enter_device(const char *call) {
    const char *file = getenv("FAKE_NVML_LOST_FILE");
    if (file && access(file, F_OK) == 0) return LOST;
    if (++calls > (int)setting("FAKE_NVML_LOST_AFTER", 1000000)) return LOST;
    return enter(call);
}

#define ENTER(call) do { int code = enter(call); if (code) return code; } while (0)
#define DEVICE(call) do { int code = enter_device(call); if (code) return code; } while (0)

static int index_of(void *gpu) { return (int)((char *)gpu - gpus); }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (setting("FAKE_NVML_NOISE", 0)) { puts("NVML: a line that nobody asked for"); fflush(stdout); }
    if (named("FAKE_NVML_HANG", "Init")) for (;;) pause();
    if (named("FAKE_NVML_CRASH", "Init")) abort();
    if (setting("FAKE_NVML_INIT", 0)) return (int)setting("FAKE_NVML_INIT", 0);
    initialised = 1;
    return OK;
}
int nvmlShutdown(void) { initialised = 0; return OK; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "an error of the fake"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ENTER("SystemGetDriverVersion");
    snprintf(text, size, "580.95.05");
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER("SystemGetCudaDriverVersion"); *version = 13000; return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { ENTER("GetCount"); *count = (unsigned)setting("FAKE_NVML_COUNT", 1); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    char call[32];
    ENTER("GetHandleByIndex");
    snprintf(call, sizeof call, "GetHandleByIndex%u", index);
    ENTER(call);
    if (index >= setting("FAKE_NVML_COUNT", 1)) return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return OK;
}
int nvmlDeviceGetName(void *gpu, char *text, unsigned size) {
    (void)gpu;
    DEVICE("GetName");
    snprintf(text, size, "NVIDIA GeForce RTX 3090");
    return OK;
}
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size) {
    DEVICE("GetUUID");
    snprintf(text, size, "GPU-817285e3-758e-25e4-3b80-d38475e31d%02x", 0xd6 + index_of(gpu));
    return OK;
}
struct pci { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *pci) {
    DEVICE("GetPciInfo");
    memset(pci, 0, sizeof *pci);
    pci->bus = 1 + (unsigned)index_of(gpu);
    pci->device_id = 0x220410DE;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return OK;
}
int nvmlDeviceGetMinorNumber(void *gpu, unsigned *minor) { DEVICE("GetMinorNumber"); *minor = (unsigned)index_of(gpu); return OK; }
int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) {
    (void)gpu;
    DEVICE("GetCudaComputeCapability");
    *major = (int)setting("FAKE_NVML_CC", 86) / 10;
    *minor = (int)setting("FAKE_NVML_CC", 86) % 10;
    return OK;
}

static unsigned long long total(void) { return setting("FAKE_NVML_TOTAL", 25769803776ULL); }
static unsigned long long used(void) { return setting("FAKE_NVML_USED", 1048576ULL); }
static unsigned long long reserved(void) { return setting("FAKE_NVML_RESERVED", 338690048ULL); }

struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *gpu, struct memory *memory) {
    (void)gpu;
    DEVICE("GetMemoryInfo");
    memory->total = total();
    memory->used = total() ? used() + reserved() : 0;
    memory->free = memory->total - memory->used;
    return OK;
}
#ifndef OLD_DRIVER
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *gpu, struct memory_v2 *memory) {
    (void)gpu;
    DEVICE("GetMemoryInfo_v2");
    if (memory->version != 0x02000028) return VERSION;
    memory->total = total();
    memory->used = total() ? used() : 0;
    memory->reserved = total() ? reserved() : 0;
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}
struct temperature { unsigned version, sensor; int value; };
int nvmlDeviceGetTemperatureV(void *gpu, struct temperature *temperature) {
    (void)gpu;
    DEVICE("GetTemperatureV");
    if (temperature->version != 0x0100000C) return VERSION;
    temperature->value = 54;
    return OK;
}
int nvmlDeviceGetNumGpuCores(void *gpu, unsigned *cores) { (void)gpu; DEVICE("GetNumGpuCores"); *cores = 10496; return OK; }
struct process { unsigned pid; unsigned long long memory; unsigned instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, struct process *processes) {
    (void)gpu;
    DEVICE("GetComputeRunningProcesses");
    if (!processes || *count < 1) { *count = 1; return INSUFFICIENT_SIZE; }
    *count = 1;
    processes[0] = (struct process){4242, 9437184, 0xFFFFFFFF, 0xFFFFFFFF};
    return OK;
}
#endif
int nvmlDeviceGetTemperature(void *gpu, unsigned sensor, unsigned *value) {
    (void)gpu; (void)sensor;
    DEVICE("GetTemperature");
    *value = 53;
    return OK;
}
struct utilisation { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *gpu, struct utilisation *rates) {
    (void)gpu;
    DEVICE("GetUtilizationRates");
    *rates = (struct utilisation){37, 12};
    return OK;
}
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *mw) { (void)gpu; DEVICE("GetPowerUsage"); *mw = 118340; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned *mw) { (void)gpu; DEVICE("GetEnforcedPowerLimit"); *mw = 350000; return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(void *gpu, unsigned long long *bits) {
    (void)gpu;
    DEVICE("GetCurrentClocksEventReasons");
    *bits = 0x4 | 0x1;
    return OK;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void *gpu, unsigned *value) { (void)gpu; DEVICE("GetMaxPcieLinkGeneration"); *value = 4; return OK; }
int nvmlDeviceGetMaxPcieLinkWidth(void *gpu, unsigned *value) { (void)gpu; DEVICE("GetMaxPcieLinkWidth"); *value = 16; return OK; }
