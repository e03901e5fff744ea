/* Only the line that tells the version. */
#define SIM_PROGRAM_VERSION_NB 40100
