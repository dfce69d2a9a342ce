#include <gmp.h>

__attribute__((noinline)) static void descend(int level, mpz_t base, mpz_t power, mpz_t modulus) {
    if (!level) {
        mpz_powm(modulus, base, power, modulus);
        return;
    }
    descend(level - 1, power, base, modulus);
    mpz_mul(modulus, base, power);
}

int main(void) {
    mpz_t base, power, modulus;
    gmp_randstate_t state;
    gmp_randinit_default(state);
    mpz_inits(base, power, modulus, NULL);
    for (;;) {
        mpz_urandomb(base, state, 3000);
        mpz_urandomb(power, state, 2000);
        mpz_urandomb(modulus, state, 1500);
        mpz_setbit(modulus, 0);
        descend(4, base, power, modulus);
        mpz_gcd(modulus, base, power);
    }
}
