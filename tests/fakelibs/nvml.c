/* A stand-in for libnvidia-ml.so.1 that answers the calls Outrider makes of it, for tests of the real Python binding.
 *
 * What it plays is read at every call: first from the file that FAKE_NVML_FILE names (lines NAME=value, which a test
 * may rewrite while the library is in use), then from the environment (FAKE_NVML_NAME). NAME_<index> is for one GPU.
 *   INIT=<code>          nvmlInit answers this error
 *   COUNT=<n>            so many GPUs (1)
 *   FAIL=<call>:<code>[,...]   these calls answer an error; a call without its prefix "nvml", "Device"
 *   LOST=<code>          everything that is asked of a GPU answers this
 *   LOST_AFTER=<n>       after n calls of a device everything answers 15 (GPU is lost)
 *   LOST_FILE=<path>     ... or as soon as this file exists
 *   HANG=<call>          this call never comes back        CRASH=<call>  this call ends the process with SIGABRT
 *   NOISE=1              nvmlInit writes to standard output, as no library should
 *   EVENTS=<path>        lines "<type> <data> <index>": the events, one after another, also those written later
 *   EVENT_TYPES=<bits>   what events the driver knows
 *   DRIVER CUDA NAME UUID BUS MINOR CC VBIOS CORES TOTAL USED RESERVED UTIL UTIL_MEMORY TEMP POWER LIMIT LIMIT_DEFAULT
 *   LIMIT_MIN LIMIT_MAX REASONS GEN GEN_NOW WIDTH WIDTH_NOW   values, in NVML's units
 *   PROCESSES GRAPHICS=<pid>:<bytes or ->[,...]    - is memory that is not available
 *   ECC ECC_ERRORS REMAP_PENDING REMAP_FAILED RETIRE_PENDING  not supported where not given, as on a GeForce
 *   COUNTS=<path>        each call of a device adds its name to this file
 * Compiled with -DOLD_DRIVER it lacks the symbols that drivers before release 515 lacked.
 * Numbers: an RTX 3090 as seen on real machines.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, LOST = 15,
    VERSION = 25
};

static int initialised;
static int calls;
static char gpus[64];

/* the value of NAME (or of NAME_<gpu>) as it is now, or NULL; good until the next call with the same slot */
static const char *text_of(const char *name, int gpu) {
    static char found[4][4096];
    static int slot;
    char own[64], *into = found[slot++ % 4], line[4096];
    const char *path = getenv("FAKE_NVML_FILE");
    int best = 0;
    snprintf(own, sizeof own, "%s_%d", name, gpu);
    FILE *file = path ? fopen(path, "re") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, '=');
        if (!value) continue;
        *value++ = 0;
        value[strcspn(value, "\n")] = 0;
        int rank = strcmp(line, own) == 0 ? 2 : strcmp(line, name) == 0 ? 1 : 0;
        if (rank && rank >= best) { best = rank; snprintf(into, sizeof found[0], "%s", value); }
    }
    if (file) fclose(file);
    if (best) return *into ? into : NULL;
    for (const char **one = (const char *[]){own, name, NULL}; *one; one++) {
        char variable[96];
        snprintf(variable, sizeof variable, "FAKE_NVML_%s", *one);
        const char *text = getenv(variable);
        if (text && *text) return text;
    }
    return NULL;
}

static unsigned long long number(const char *name, int gpu, unsigned long long otherwise) {
    const char *text = text_of(name, gpu);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

static int named(const char *variable, const char *call, int gpu) {
    const char *text = text_of(variable, gpu);
    return text && strcmp(text, call) == 0;
}

/* the code that FAIL sets for a call, or 0 */
static int failure(const char *call, int gpu) {
    const char *at = text_of("FAIL", gpu);
    size_t length = strlen(call);
    while (at && *at) {
        if (strncmp(at, call, length) == 0 && at[length] == ':') return atoi(at + length + 1);
        at = strchr(at, ',');
        if (at) at++;
    }
    return OK;
}

static int enter(const char *call, int gpu) {
    if (named("HANG", call, gpu)) for (;;) pause();
    if (named("CRASH", call, gpu)) abort();
    if (!initialised) return UNINITIALIZED;
    return failure(call, gpu);
}

static int lost(int gpu) {
    const char *file = text_of("LOST_FILE", gpu);
    if (file && access(file, F_OK) == 0) return LOST;
    if (number("LOST", gpu, 0)) return (int)number("LOST", gpu, 0);
    return calls > (int)number("LOST_AFTER", gpu, 1000000) ? LOST : OK;
}

static int enter_device(const char *call, int gpu) {
    const char *counts = text_of("COUNTS", gpu);
    FILE *file = counts ? fopen(counts, "ae") : NULL;
    if (file) { fprintf(file, "%s\n", call); fclose(file); }
    calls++;
    if (lost(gpu)) return lost(gpu);
    return enter(call, gpu);
}

static int index_of(void *gpu) { return (int)((char *)gpu - gpus); }

#define ENTER(call) do { int code = enter(call, -1); if (code) return code; } while (0)
#define DEVICE(call) do { int code = enter_device(call, index_of(gpu)); if (code) return code; } while (0)
#define NUMBER(function, call, type, name, otherwise) \
    int function(void *gpu, type *value) { DEVICE(call); *value = (type)number(name, index_of(gpu), otherwise); return OK; }
/* not supported unless a value is given */
#define OPTIONAL(call, name) do { DEVICE(call); if (!text_of(name, index_of(gpu))) return NOT_SUPPORTED; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (number("NOISE", -1, 0)) { puts("NVML: a line that nobody asked for"); fflush(stdout); }
    if (named("HANG", "Init", -1)) for (;;) pause();
    if (named("CRASH", "Init", -1)) abort();
    if (number("INIT", -1, 0)) return (int)number("INIT", -1, 0);
    initialised = 1;
    return OK;
}
int nvmlShutdown(void) { initialised = 0; return OK; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "an error of the fake"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ENTER("SystemGetDriverVersion");
    const char *version = text_of("DRIVER", -1);
    snprintf(text, size, "%s", version ? version : "580.95.05");
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER("SystemGetCudaDriverVersion");
    *version = (int)number("CUDA", -1, 13000);
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *count) { ENTER("GetCount"); *count = (unsigned)number("COUNT", -1, 1); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    char call[32];
    ENTER("GetHandleByIndex");
    snprintf(call, sizeof call, "GetHandleByIndex%u", index);
    ENTER(call);
    if (index >= number("COUNT", -1, 1) || index >= sizeof gpus) return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return OK;
}
static int text_call(const char *call, const char *name, void *gpu, char *text, unsigned size, const char *otherwise) {
    DEVICE(call);
    const char *value = text_of(name, index_of(gpu));
    if (value && strcmp(value, "GARBAGE") == 0) value = "\xff\xfe\x80";
    snprintf(text, size, "%s", value ? value : otherwise);
    return OK;
}
int nvmlDeviceGetName(void *gpu, char *text, unsigned size) {
    return text_call("GetName", "NAME", gpu, text, size, "NVIDIA GeForce RTX 3090");
}
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size) {
    char uuid[64];
    snprintf(uuid, sizeof uuid, "GPU-817285e3-758e-25e4-3b80-d38475e31d%02x", 0xd6 + index_of(gpu));
    return text_call("GetUUID", "UUID", gpu, text, size, uuid);
}
int nvmlDeviceGetVbiosVersion(void *gpu, char *text, unsigned size) {
    return text_call("GetVbiosVersion", "VBIOS", gpu, text, size, "94.02.42.C0.05");
}
struct pci { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *pci) {
    DEVICE("GetPciInfo");
    const char *bus = text_of("BUS", index_of(gpu));
    memset(pci, 0, sizeof *pci);
    pci->bus = 1 + (unsigned)index_of(gpu);
    pci->device_id = 0x220410DE;
    if (bus) snprintf(pci->bus_id, sizeof pci->bus_id, "%s", bus);
    else snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return OK;
}
NUMBER(nvmlDeviceGetMinorNumber, "GetMinorNumber", unsigned, "MINOR", index_of(gpu))
int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) {
    DEVICE("GetCudaComputeCapability");
    *major = (int)number("CC", index_of(gpu), 86) / 10;
    *minor = (int)number("CC", index_of(gpu), 86) % 10;
    return OK;
}

static unsigned long long total(int gpu) { return number("TOTAL", gpu, 25769803776ULL); }
static unsigned long long used(int gpu) { return number("USED", gpu, 1048576ULL); }
static unsigned long long reserved(int gpu) { return number("RESERVED", gpu, 338690048ULL); }

struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *gpu, struct memory *memory) {
    DEVICE("GetMemoryInfo");
    int i = index_of(gpu);
    memory->total = total(i);
    memory->used = total(i) ? used(i) + reserved(i) : 0;
    memory->free = memory->total - memory->used;
    return OK;
}

struct process { unsigned pid; unsigned long long memory; unsigned instance, compute_instance; };
static int list(void *gpu, const char *call, const char *name, unsigned *count, struct process *into) {
    DEVICE(call);
    const char *at = text_of(name, index_of(gpu));
    if (!at && strcmp(name, "PROCESSES") == 0) at = "4242:9437184";
    if (at && strcmp(at, "none") == 0) at = NULL;
    unsigned found = 0;
    for (; at && *at; found++) {
        char *memory = strchr(at, ':');
        if (into && found < *count) {
            unsigned long long size = memory && memory[1] != '-' ? strtoull(memory + 1, NULL, 0) : 0xFFFFFFFFFFFFFFFFULL;
            into[found] = (struct process){(unsigned)strtoul(at, NULL, 0), size, 0xFFFFFFFF, 0xFFFFFFFF};
        }
        at = strchr(at, ',');
        if (at) at++;
    }
    int fits = into ? found <= *count : found == 0;
    *count = found;
    return fits ? OK : INSUFFICIENT_SIZE;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *gpu, unsigned *count, struct process *into) {
    return list(gpu, "GetComputeRunningProcesses_v2", "PROCESSES", count, into);
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(void *gpu, unsigned *count, struct process *into) {
    return list(gpu, "GetGraphicsRunningProcesses_v2", "GRAPHICS", count, into);
}
#ifndef OLD_DRIVER
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *gpu, struct memory_v2 *memory) {
    DEVICE("GetMemoryInfo_v2");
    int i = index_of(gpu);
    if (memory->version != 0x02000028) return VERSION;
    memory->total = total(i);
    memory->used = total(i) ? used(i) : 0;
    memory->reserved = total(i) ? reserved(i) : 0;
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}
struct temperature { unsigned version, sensor; int value; };
int nvmlDeviceGetTemperatureV(void *gpu, struct temperature *temperature) {
    DEVICE("GetTemperatureV");
    if (temperature->version != 0x0100000C) return VERSION;
    temperature->value = (int)number("TEMP", index_of(gpu), 54);
    return OK;
}
NUMBER(nvmlDeviceGetNumGpuCores, "GetNumGpuCores", unsigned, "CORES", 10496)
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, struct process *into) {
    return list(gpu, "GetComputeRunningProcesses", "PROCESSES", count, into);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *gpu, unsigned *count, struct process *into) {
    return list(gpu, "GetGraphicsRunningProcesses", "GRAPHICS", count, into);
}
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, "GetCurrentClocksEventReasons", unsigned long long, "REASONS", 0x4)
#endif
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, "GetCurrentClocksThrottleReasons", unsigned long long, "REASONS", 0x4)
int nvmlDeviceGetTemperature(void *gpu, unsigned sensor, unsigned *value) {
    (void)sensor;
    DEVICE("GetTemperature");
    *value = (unsigned)number("TEMP", index_of(gpu), 53);
    return OK;
}
struct utilisation { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *gpu, struct utilisation *rates) {
    DEVICE("GetUtilizationRates");
    *rates = (struct utilisation){(unsigned)number("UTIL", index_of(gpu), 37), (unsigned)number("UTIL_MEMORY", index_of(gpu), 12)};
    return OK;
}
NUMBER(nvmlDeviceGetPowerUsage, "GetPowerUsage", unsigned, "POWER", 118340)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "GetEnforcedPowerLimit", unsigned, "LIMIT", 350000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "GetPowerManagementDefaultLimit", unsigned, "LIMIT_DEFAULT", 350000)
int nvmlDeviceGetPowerManagementLimitConstraints(void *gpu, unsigned *low, unsigned *high) {
    DEVICE("GetPowerManagementLimitConstraints");
    *low = (unsigned)number("LIMIT_MIN", index_of(gpu), 100000);
    *high = (unsigned)number("LIMIT_MAX", index_of(gpu), 350000);
    return OK;
}
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "GetMaxPcieLinkGeneration", unsigned, "GEN", 4)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "GetMaxPcieLinkWidth", unsigned, "WIDTH", 16)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "GetCurrPcieLinkGeneration", unsigned, "GEN_NOW", 4)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "GetCurrPcieLinkWidth", unsigned, "WIDTH_NOW", 16)

int nvmlDeviceGetEccMode(void *gpu, unsigned *now, unsigned *pending) {
    OPTIONAL("GetEccMode", "ECC");
    *now = *pending = (unsigned)number("ECC", index_of(gpu), 0);
    return OK;
}
int nvmlDeviceGetTotalEccErrors(void *gpu, unsigned type, unsigned counter, unsigned long long *count) {
    (void)type; (void)counter;
    OPTIONAL("GetTotalEccErrors", "ECC_ERRORS");
    *count = number("ECC_ERRORS", index_of(gpu), 0);
    return OK;
}
int nvmlDeviceGetRemappedRows(void *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    OPTIONAL("GetRemappedRows", "REMAP_PENDING");
    *corrected = *uncorrected = 0;
    *pending = (unsigned)number("REMAP_PENDING", index_of(gpu), 0);
    *failed = (unsigned)number("REMAP_FAILED", index_of(gpu), 0);
    return OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(void *gpu, unsigned *pending) {
    OPTIONAL("GetRetiredPagesPendingStatus", "RETIRE_PENDING");
    *pending = (unsigned)number("RETIRE_PENDING", index_of(gpu), 0);
    return OK;
}

/* events */

struct event { void *gpu; unsigned long long type, data; unsigned instance, compute_instance; };
static int delivered;
static unsigned long long known(int gpu) {
#ifdef OLD_DRIVER
    return number("EVENT_TYPES", gpu, 0x1f);
#else
    return number("EVENT_TYPES", gpu, 0xc01f);
#endif
}
int nvmlEventSetCreate(void **set) { ENTER("EventSetCreate"); *set = &delivered; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *gpu, unsigned long long *types) {
    DEVICE("GetSupportedEventTypes");
    *types = known(index_of(gpu));
    return OK;
}
int nvmlDeviceRegisterEvents(void *gpu, unsigned long long types, void *set) {
    (void)set;
    DEVICE("RegisterEvents");
    return types & ~known(index_of(gpu)) ? NOT_SUPPORTED : OK;
}
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds) {
    (void)set;
    ENTER("EventSetWait");
    for (unsigned waited = 0;; waited += 10) {
        const char *path = text_of("EVENTS", -1);
        FILE *file = path ? fopen(path, "re") : NULL;
        char line[128];
        unsigned index = 0;
        for (int at = 0; file && fgets(line, sizeof line, file); at++) {
            if (at < delivered || !strchr(line, '\n')) continue;
            memset(event, 0, sizeof *event);
            if (sscanf(line, "%llx %llu %u", &event->type, &event->data, &index) < 2) continue;
            event->gpu = &gpus[index];
            event->instance = event->compute_instance = 0xFFFFFFFF;
            delivered = at + 1;
            fclose(file);
            return OK;
        }
        if (file) fclose(file);
        ENTER("EventSetWait");
        if (lost(-1)) return lost(-1);
        if (waited >= milliseconds) return TIMEOUT;
        usleep(10000);
    }
}
