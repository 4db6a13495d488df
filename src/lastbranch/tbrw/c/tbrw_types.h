/* Types of the TBRW API. Structures have the layout of 64-bit systems.
   Written from the TBRW User Guide 2.3 (320237-002US). Made by tools/generate.py. */
#ifndef LASTBRANCH_TBRW_TYPES_H
#define LASTBRANCH_TBRW_TYPES_H

#include <wchar.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef wchar_t TBRW_CHAR;
typedef unsigned char TBRW_U8;
typedef unsigned short TBRW_U16;
typedef unsigned int TBRW_U32;
typedef signed int TBRW_S32;
#if defined(_WIN32)
#define TBRW_OS_WINDOWS
typedef signed __int64 TBRW_S64;
typedef unsigned __int64 TBRW_U64;
#else
#if defined(__APPLE__)
#define TBRW_OS_APPLE
#else
#define TBRW_OS_LINUX
#endif
typedef signed long long TBRW_S64;
typedef unsigned long long TBRW_U64;
#ifndef _wcsdup
#define _wcsdup wcsdup /* the guide's examples call it by its Windows name */
#endif
#endif

typedef void *TBRW_PTR;

#ifndef FALSE
#define FALSE 0
#endif
#ifndef TRUE
#define TRUE 1
#endif

typedef struct TBRW_STRING_OR_ID_s {
    union {
        TBRW_U64 soi_uniqueid; /* where it was read */
        TBRW_CHAR *soi_ptr;    /* where it is to be written */
    };
} TBRW_STRING_OR_ID;

#define TBRW_FILE_READ 0x1
#define TBRW_FILE_WRITE 0x2
#define TBRW_FILE_CREATE_ALWAYS 0x4

#define TBRW_OSFAMILY_WIN32 0x1
#define TBRW_OSFAMILY_WIN64 0x2
#define TBRW_OSFAMILY_WINCE 0x3
#define TBRW_OSFAMILY_XOS 0x4
#define TBRW_OSFAMILY_LINUX32 0x5
#define TBRW_OSFAMILY_LINUX64 0x6
#define TBRW_OSFAMILY_OTHER 0x100

#define TBRW_MODE_V86 0x0
#define TBRW_MODE_16BIT 0x1
#define TBRW_MODE_32BIT 0x2
#define TBRW_MODE_64BIT 0x3

#define CPU_ARCHITECTURE_UNKNOWN 0x0
#define CPU_ARCHITECTURE_IA32 0x1
#define CPU_ARCHITECTURE_IA64 0x2

#define TBRW_MODULE_IS_EXE 0x1
#define TBRW_MODULE_GLOBAL_LOAD 0x2
#define TBRW_MODULE_TSC_USED 0x20
#define TBRW_MODULE_1ST_MODULE_REC_IN_PROCESS 0x200
#define TBRW_MODULE_LOADED 0x10000
#define TBRW_MODULE_UNLOADED 0x20000

#define TBRW_EVENT_EBS 0x1
#define TBRW_EVENT_TBS 0x2

typedef enum {
    TBRW_HARDWARE_SECTION = 0x0,
    TBRW_SOFTWARE_SECTION = 0x1,
    TBRW_PROCESS_THREAD_SECTION = 0x2,
    TBRW_MODULE_SECTION = 0x3,
    TBRW_USER_DEFINED_GLOBAL_SECTION = 0x4,
    TBRW_VERSION_INFO_SECTION = 0x5
} TBRW_SECTION_IDENTIFIER;

typedef enum {
    TBRW_EVENT_DESCRIPTION_SECTION = 0x0,
    TBRW_DATA_DESCRIPTION_SECTION = 0x1,
    TBRW_DATA_SECTION = 0x2,
    TBRW_USER_DEFINED_STREAM_SECTION = 0x3,
    TBRW_STREAM_INFO_SECTION = 0x4
} TBRW_STREAM_SECTION_IDENTIFIER;

typedef enum {
    TBRW_SAMPLING_STREAM = 0x1,
    TBRW_AGGREGATED_STREAM = 0x2,
    TBRW_BOOKMARK_STREAM = 0x3,
    TBRW_BIND_DATA_INFORMATION_STREAM = 0x4,
    TBRW_BIND_MODULE_INFORMATION_STREAM = 0x5,
    TBRW_BIND_PID_INFORMATION_STREAM = 0x6,
    TBRW_BIND_TID_INFORMATION_STREAM = 0x7,
    TBRW_CUSTOM_STREAM = 0x8
} TBRW_STREAM_TYPE;

typedef enum {
    TBRW_MSR = 0x0,
    TBRW_PCI = 0x1,
    TBRW_MEMORY = 0x2,
    TBRW_OTHER = 0x3
} TBRW_ACCESS_METHOD;

typedef enum {
    TBRW_GST_UNKNOWN = 0x0,
    TBRW_GST_X86 = 0x1,
    TBRW_GST_ITANIUM = 0x2,
    TBRW_GST_SA = 0x3,
    TBRW_GST_XSC = 0x4,
    TBRW_GST_EM64T = 0x5,
    TBRW_GST_CS860 = 0x6
} TBRW_GEN_ENTRY_SUBTYPES;

typedef struct TBRW_CodeDescriptor_s {
    TBRW_U32 lowWord;
    TBRW_U32 highWord;
} TBRW_CodeDescriptor;

typedef struct VTUNE_ANALYZER_FILETIME_s {
    TBRW_U32 dwLowDateTime;
    TBRW_U32 dwHighDateTime;
} VTUNE_ANALYZER_FILETIME;

typedef struct TBRW_CPUID_IA32_s {
    TBRW_U32 cpuid_eax_input;
    TBRW_U32 cpuid_eax;
    TBRW_U32 cpuid_ebx;
    TBRW_U32 cpuid_ecx;
    TBRW_U32 cpuid_edx;
    TBRW_U32 reserved;
} TBRW_CPUID_IA32;

typedef struct TBRW_CPUID_IA64_s {
    TBRW_U64 cpuid_select;
    TBRW_U64 cpuid_val;
    TBRW_U64 reserved;
} TBRW_CPUID_IA64;

typedef struct TBRW_CPU_ARCH_s {
    TBRW_U32 arch_size;
    TBRW_U16 arch_type;
    TBRW_U16 arch_num_cpuid;
    union {
        TBRW_CPUID_IA32 *cpuid_ia32_array;
        TBRW_CPUID_IA64 *cpuid_ia64_array;
    };
} TBRW_CPU_ARCH;

typedef struct TBRW_CPU_s {
    TBRW_U32 cpu_size;
    TBRW_U32 cpu_number;
    TBRW_U32 cpu_native_arch_type;
    TBRW_U32 cpu_intel_processor_number;
    TBRW_U32 cpu_speed_mhz;
    TBRW_U32 cpu_fsb_mhz;
    TBRW_U32 cpu_cache_L2;
    TBRW_U32 cpu_cache_L3;
    TBRW_S64 cpu_tsc_offset;
    union {
        TBRW_U16 cpu_package_num;
        TBRW_U16 cpu_pacakge_num;
    };
    TBRW_U16 cpu_core_num;
    TBRW_U16 cpu_hardware_thread_num;
    TBRW_U16 cpu_threads_per_core;
    TBRW_U32 num_cpu_arch_array;
    TBRW_CPU_ARCH *cpu_arch_array;
} TBRW_CPU;

typedef struct TBRW_NODE_s {
    TBRW_U32 node_size;
    TBRW_U32 node_type_from_shell;
    TBRW_U32 node_id;
    TBRW_U32 node_num_available;
    TBRW_U32 node_num_used;
    TBRW_U64 node_physical_memory;
    TBRW_CPU *cpu_array;
} TBRW_NODE;

typedef struct TBRW_SYSTEM_s {
    TBRW_U32 system_size;
    TBRW_U32 system_num_nodes;
    TBRW_NODE *node_array;
} TBRW_SYSTEM;

typedef struct TBRW_HOST_s {
    TBRW_U32 host_size;
    TBRW_STRING_OR_ID host_ip_address;
    TBRW_STRING_OR_ID host_name;
    TBRW_U32 reserved;
} TBRW_HOST;

typedef struct TBRW_OS_s {
    TBRW_U32 os_size;
    TBRW_U32 os_platform;
    TBRW_U32 os_major;
    TBRW_U32 os_minor;
    TBRW_U32 os_build;
    TBRW_U32 os_extra;
    TBRW_STRING_OR_ID os_name;
    TBRW_STRING_OR_ID os_name_extra;
} TBRW_OS;

typedef struct TBRW_APPLICATION_s {
    TBRW_U32 app_size;
    TBRW_U32 app_reserved;
    TBRW_U32 app_page_size;
    TBRW_U32 app_alloc_granularity;
    TBRW_U64 app_min_app_addr;
    TBRW_U64 app_max_app_addr;
} TBRW_APPLICATION;

typedef struct TBRW_PID_s {
    TBRW_U32 pid_size;
    TBRW_U32 pid_id;
    TBRW_U32 pid_flags;
    TBRW_U64 pid_event_when;
    TBRW_U32 reserved1;
    TBRW_U32 reserved2;
    TBRW_STRING_OR_ID pid_path;
    TBRW_STRING_OR_ID pid_name;
} TBRW_PID;

typedef struct TBRW_TID_s {
    TBRW_U32 tid_size;
    TBRW_U32 tid_associated_pid;
    TBRW_U32 tid_id;
    TBRW_U32 tid_flags;
    TBRW_U64 tid_event_when;
    TBRW_U32 reserved1;
    TBRW_U32 reserved2;
    TBRW_STRING_OR_ID tid_name;
} TBRW_TID;

typedef struct TBRW_MODULE_s {
    TBRW_U32 module_size;
    TBRW_U32 reserved;
    TBRW_U32 module_associated_pid;
    TBRW_U32 module_flags;
    TBRW_U64 module_event_when;
    TBRW_U32 module_segment_number;
    union {
        TBRW_U32 module_segment_type_word;
        struct {
            TBRW_U32 module_segment_type : 2;
        };
    };
    TBRW_U32 module_code_selector;
    TBRW_U64 module_length;
    TBRW_U64 module_load_address;
    TBRW_U32 reserved_for_legacy;
    TBRW_U32 reserved_for_legacy2;
    TBRW_U32 reserved_for_legacy_flags;
    TBRW_U32 reserved1;
    TBRW_U64 module_unload_tsc;
    TBRW_STRING_OR_ID module_path;
    TBRW_STRING_OR_ID module_name;
    TBRW_STRING_OR_ID module_segment_name;
} TBRW_MODULE;

typedef struct TBRW_VERSION_INFO_s {
    TBRW_U32 version_info_size;
    TBRW_U32 sampling_driver_version;
    TBRW_U32 bind_version;
    TBRW_U32 sample_file_version;
} TBRW_VERSION_INFO;

typedef struct TBRW_STREAM_INFO_s {
    TBRW_U32 stream_info_size;
    TBRW_U32 sampling_duration;
    TBRW_U32 stream_type;
    TBRW_U32 sampling_interval;
    VTUNE_ANALYZER_FILETIME sampling_start_time;
    VTUNE_ANALYZER_FILETIME sampling_end_time;
    TBRW_STRING_OR_ID command_line;
    TBRW_STRING_OR_ID cpu_mask;
    TBRW_STRING_OR_ID comment;
} TBRW_STREAM_INFO;

typedef struct TBRW_EVENT_DETAIL_s {
    TBRW_U32 detail_size;
    TBRW_U16 detail_access_size;
    TBRW_U8 detail_method;
    TBRW_U8 detail_access;
    TBRW_U64 detail_address;
    TBRW_U64 detail_value;
    TBRW_U8 legacy_command;
    TBRW_U8 reserved1;
    TBRW_U16 reserved2;
    TBRW_U16 reserved3;
} TBRW_EVENT_DETAIL;

typedef struct TBRW_EVENT_s {
    TBRW_U32 event_size;
    TBRW_U32 event_id;
    TBRW_U32 event_num_details;
    TBRW_U32 event_flags;
    TBRW_U64 event_sav;
    TBRW_STRING_OR_ID event_name;
    TBRW_STRING_OR_ID event_arch_name;
    TBRW_EVENT_DETAIL *event_detail_array;
} TBRW_EVENT;

typedef struct TBRW_SAMPREC_DESC_ENTRY_s {
    union {
        TBRW_U64 force_8_byte_aligned;
        struct {
            TBRW_U32 desc_size;
            TBRW_U32 desc_offset;
            TBRW_U16 desc_type;
            union {
                TBRW_U16 desc_subtype;
                TBRW_U16 desc_sub_type;
            };
            TBRW_U32 desc_data_size;
            TBRW_U64 desc_access_offset;
            TBRW_U8 desc_access_type;
            TBRW_U8 desc_access_method;
            TBRW_U8 desc_sample_flag;
            TBRW_U8 reserved0;
            TBRW_U32 reserved1;
            TBRW_STRING_OR_ID desc_name;
        };
    };
} TBRW_SAMPREC_DESC_ENTRY;

typedef struct TBRW_SampleRecordPC_s {
    union {
        struct {
            TBRW_U64 iip;
            TBRW_U64 ipsr;
        };
        struct {
            TBRW_U32 eip;
            TBRW_U32 eflags;
            TBRW_CodeDescriptor csd;
        };
    };
    TBRW_U16 cs;
    union {
        TBRW_U16 cpuAndOS;
        struct {
            TBRW_U16 cpuNum : 12;
            TBRW_U16 notVmid0 : 1;
            TBRW_U16 codeMode : 2;
            TBRW_U16 reserved : 1;
        };
    };
    TBRW_U32 tid;
    TBRW_U32 pidRecIndex;
    union {
        TBRW_U32 bitFields2;
        struct {
            TBRW_U32 mrIndex : 20;
            TBRW_U32 eventIndex : 8;
            TBRW_U32 tidIsRaw : 1;
            TBRW_U32 IA64PC : 1;
            TBRW_U32 pidRecIndexRaw : 1;
            TBRW_U32 mrIndexNone : 1;
        };
    };
} TBRW_SampleRecordPC;

typedef TBRW_SampleRecordPC *TBRW_PSampleRecordPC;

typedef struct TBRW_SampleRecordTSC_s {
    TBRW_U64 tsc;
} TBRW_SampleRecordTSC;

typedef struct DATA_BIND_STRUCT_s {
    TBRW_U64 module_index;
    TBRW_U64 pid_index;
    TBRW_U64 tid_index;
} DATA_BIND_STRUCT;

typedef struct MODULE_BIND_STRUCT_s {
    TBRW_U64 pid_index;
} MODULE_BIND_STRUCT;

typedef struct TID_BIND_STRUCT_s {
    TBRW_U64 pid_index;
} TID_BIND_STRUCT;

typedef TBRW_CPUID_IA32 TBRW_CPUD_IA32; /* so spelled in 8.3 */

typedef TBRW_U32 TBRW_DATA_CALLBACK(void *data, TBRW_U32 data_size, TBRW_U32 num_entries, void *user_ptr);
typedef TBRW_U32 TBRW_PID_CALLBACK(TBRW_PID *pid, TBRW_U32 pid_data_size, TBRW_U32 num_entries, void *user_ptr);
typedef TBRW_U32 TBRW_TID_CALLBACK(TBRW_TID *tid, TBRW_U32 tid_data_size, TBRW_U32 num_entries, void *user_ptr);
typedef TBRW_U32 TBRW_MODULE_CALLBACK(TBRW_MODULE *module, TBRW_U32 module_data_size, TBRW_U32 num_entries, void *user_ptr);
typedef TBRW_U32 TBRW_EVENT_CALLBACK(TBRW_EVENT *event, TBRW_U32 event_data_size, TBRW_U32 num_entries, void *user_ptr);
typedef TBRW_U32 TBRW_DATA_DESC_CALLBACK(TBRW_SAMPREC_DESC_ENTRY *data_desc, TBRW_U32 data_desc_size, TBRW_U32 num_entries, void *user_ptr);
typedef TBRW_U32 BIND_DATA_CALLBACK(const void *data, TBRW_U32 sizeof_data_buffer, TBRW_U64 num_entries, const DATA_BIND_STRUCT *bind_table, TBRW_U32 sizeof_bind_buffer, void *user_ptr);
typedef TBRW_U32 BIND_MODULE_CALLBACK(const void *data, TBRW_U32 sizeof_data_buffer, TBRW_U64 num_entries, const MODULE_BIND_STRUCT *bind_table, TBRW_U32 sizeof_bind_buffer, void *user_ptr);
typedef TBRW_U32 BIND_TID_CALLBACK(const void *data, TBRW_U32 sizeof_data_buffer, TBRW_U64 num_entries, const TID_BIND_STRUCT *bind_table, TBRW_U32 sizeof_bind_buffer, void *user_ptr);

#ifdef __cplusplus
}
#endif

#endif
