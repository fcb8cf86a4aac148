/* A stand-in for libamd_smi.so: one Strix Halo, for tests of the real Python binding (amdsmi 7.0.2).
 *
 * The binding looks up 184 symbols when it is imported: those not written here come from stubs.inc,
 * which the build generates from the binding itself and whose functions answer 2 (not supported).
 *   FAKE_AMD_INIT=<code>   amdsmi_init answers this error
 *   FAKE_AMD_FAIL=<code>   every other call does
 *   FAKE_AMD_HANG=1        amdsmi_init never comes back
 *   FAKE_AMD_BUS=<n>       the PCI bus (0xc6)
 * Structures are laid out as the binding's _fields_ say.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOT_SUPPORTED = 2, NOT_INITIALISED = 32 };

static int initialised;
static char socket_handle, gpu_handle;

static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? (int)strtol(text, NULL, 0) : otherwise;
}

#define ENTER do { if (!initialised) return NOT_INITIALISED; \
    if (setting("FAKE_AMD_FAIL", 0)) return setting("FAKE_AMD_FAIL", 0); } while (0)

int amdsmi_init(uint64_t flags) {
    (void)flags;
    puts("amdsmi: a line that nobody asked for");
    fflush(stdout);
    if (setting("FAKE_AMD_HANG", 0)) for (;;) pause();
    if (setting("FAKE_AMD_INIT", 0)) return setting("FAKE_AMD_INIT", 0);
    initialised = 1;
    return 0;
}
int amdsmi_shut_down(void) { initialised = 0; return 0; }
void amdsmi_free_name_value_pairs(void *pairs) { free(pairs); }
int amdsmi_get_socket_handles(uint32_t *count, void **handles) {
    ENTER;
    *count = 1;
    if (handles) handles[0] = &socket_handle;
    return 0;
}
int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
    (void)socket;
    ENTER;
    *count = 1;
    if (handles) handles[0] = &gpu_handle;
    return 0;
}
int amdsmi_get_gpu_device_bdf(void *gpu, uint64_t *bdf) {
    (void)gpu;
    ENTER;
    *bdf = (uint64_t)setting("FAKE_AMD_BUS", 0xc6) << 8; /* function 3 bits, device 5, bus 8, domain 48 */
    return 0;
}
int amdsmi_get_gpu_device_uuid(void *gpu, uint32_t *size, char *text) {
    (void)gpu; (void)size;
    ENTER;
    strcpy(text, "00ff1586-0000-1000-8000-000000000000");
    return 0;
}
struct asic {
    char market_name[256]; uint32_t vendor_id; char vendor_name[256]; uint32_t subvendor_id; uint64_t device_id;
    uint32_t rev_id; char serial[256]; uint32_t oam_id, compute_units, padding; uint64_t graphics_version;
    uint32_t subsystem_id, reserved[21];
} __attribute__((packed));
int amdsmi_get_gpu_asic_info(void *gpu, struct asic *asic) {
    (void)gpu;
    ENTER;
    memset(asic, 0, sizeof *asic);
    strcpy(asic->market_name, "Radeon 8060S Graphics");
    strcpy(asic->vendor_name, "Advanced Micro Devices Inc. [AMD/ATI]");
    asic->vendor_id = 0x1002;
    asic->device_id = 0x1586;
    asic->rev_id = 0xd1;
    asic->oam_id = 0xFFFFFFFF;
    asic->compute_units = 40;
    asic->graphics_version = 0x1151;
    return 0;
}
struct power { uint64_t socket; uint32_t current, average; uint64_t gfx, soc, mem; uint32_t limit, padding; uint64_t reserved[18]; };
int amdsmi_get_power_info(void *gpu, struct power *power) {
    (void)gpu;
    ENTER;
    memset(power, 0, sizeof *power);
    power->socket = 0xFFFF;
    power->current = 0xFFFFFFFF; /* what 7.0.2 lets through as 4294967295 */
    power->average = 57;
    power->limit = 0;            /* an APU has none to tell */
    return 0;
}
/* types: 0 VRAM, 1 visible VRAM, 2 GTT */
int amdsmi_get_gpu_memory_total(void *gpu, uint32_t type, uint64_t *bytes) {
    (void)gpu;
    ENTER;
    *bytes = type == 2 ? 118111600640ULL : 536870912ULL;
    return 0;
}
int amdsmi_get_gpu_memory_usage(void *gpu, uint32_t type, uint64_t *bytes) {
    (void)gpu;
    ENTER;
    *bytes = type == 2 ? 1010827264ULL : 512753664ULL;
    return 0;
}
#include "stubs.inc"
